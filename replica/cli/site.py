"""`notary site`: which of two sites may serve."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, JsonOption, err, find_config, load, out, print_json, run
from replica.cli.trailed import ConfirmOption, ProposeOption, ReasonOption, acting
from replica.cli.trailed import propose as propose_act
from replica.notary.errors import ConfigError

if TYPE_CHECKING:
    from ha.site.core import Term
    from ha.site.settings import SiteSettings
    from replica.config.model import Config

app = typer.Typer(help="The term that lets one of two sites serve: look at it, take it.", no_args_is_help=True)

NothingOption = Annotated[
    bool,
    typer.Option(
        "--nothing-was-served",
        help="Take it even for a log that had an earlier term: no replica served under the terms since.",
    ),
]


@app.command()
def status(config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Show the term that the witness has, and whether it is of this site and its log.

    Exit code 1 with HA_SITE_TAKEN_OVER when it is not, and with HA_SITE_UNCONFIRMED when there is none.
    """
    from ha.errors import SiteTakenOver, WitnessUnavailable

    settings = load(find_config(config))
    site = _site(settings)
    log_id, term = run(_look(settings))
    if as_json:
        print_json({"site": site.name, "log_id": log_id, "term": None if term is None else asdict(term)})
    else:
        out.print(f"this is site {site.name}, with log {log_id}", markup=False)
        if term is not None:
            out.print(f"{term}; its lease is {term.lease_s:g} s", markup=False)
    if term is None:
        raise WitnessUnavailable("the witness has no term yet")
    if (term.site, term.log_id) != (site.name, log_id):
        raise SiteTakenOver(f"this is site {site.name} with log {log_id}, and the witness has {term}")


@app.command()
def take(
    *,
    nothing_was_served: NothingOption = False,
    reason: ReasonOption = None,
    propose: ProposeOption = False,
    confirm: ConfirmOption = None,
    config: ConfigChoice = None,
) -> None:
    """Take the next term for this site and its log, so that its replicas may serve and no others.

    It waits until nobody has renewed the present term for its whole lease, and changes nothing while somebody does;
    where the witness has no term, it waits as well. A log that had an earlier term is refused. It says nothing about
    the log: copy, finish and adopt it as the runbook says.
    """
    settings = load(find_config(config))
    site = _site(settings)
    log_id = run(_log_id(settings))
    asked = {"site": site.name, "log_id": log_id, "nothing_was_served": nothing_was_served or None}
    if propose:
        propose_act(settings, "site-take", asked, reason)
        return
    with acting(settings, "site-take", asked, reason, confirm=confirm) as act:
        taken = run(_take(settings, site, log_id, nothing_was_served))
        act.outcome = str(taken)
    out.print(f"{taken}: only that site's replicas may serve, and only with that log", markup=False)


def _site(settings: Config) -> SiteSettings:
    if settings.site is None:
        raise ConfigError("the configuration has no [site]: replicas serve without a term")
    return settings.site


async def _look(settings: Config) -> tuple[str, Term | None]:
    from ha.site.witness import PostgresWitness

    return await _log_id(settings), await PostgresWitness(settings.site_witness()).see()


async def _log_id(settings: Config) -> str:
    from replica.log.open import open_log_admin

    admin = open_log_admin(settings.log.settings)
    try:
        return await admin.topic_id()
    finally:
        await admin.close()


async def _take(settings: Config, site: SiteSettings, log_id: str, nothing_was_served: bool) -> Term:
    from ha.clock import SystemClock
    from ha.site.guard import take as take_term
    from ha.site.witness import PostgresWitness

    return await take_term(
        PostgresWitness(settings.site_witness()),
        site.name,
        log_id,
        SystemClock(),
        lease_s=site.lease_s,
        though_superseded=nothing_was_served,
        on_wait=lambda term, waited_s: err.print(
            f"{term or 'the witness has no term'}: waits {waited_s:g} s whether one is renewed", markup=False
        ),
    )
