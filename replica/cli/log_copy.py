"""`notary log copy`: a second site's log, kept at the same offsets as this one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, out, print_json
from replica.cli.pipeline import (
    archive_public_key,
    ending_for_good,
    follower_metrics,
    progress,
    require_archive,
    tell_failure,
)
from replica.cli.salvage import FileArgument, published_offset, read_salvage
from replica.notary.errors import ConfigError, LogRefused, LogUnavailable

if TYPE_CHECKING:
    from replica.config.model import Config
    from replica.log.settings import LogSettings

ToOption = Annotated[
    Path | None,
    typer.Option(
        "--to", help="Configuration file of the second site, whose [log] gets the records; else log_copy.to.",
        dir_okay=False, exists=True,
    ),
]  # fmt: skip
FollowOption = Annotated[
    bool, typer.Option("--follow", help="Go on for ever, looking every log_copy.interval_s; failures are tried again.")
]
StatusOption = Annotated[bool, typer.Option("--status", help="Only say where both logs end.")]
FinishOption = Annotated[
    bool, typer.Option("--finish", help="Only make the copy a log that replicas may write; the site's own is gone.")
]

SalvageOption = Annotated[
    Path | None,
    typer.Option(
        "--salvage", dir_okay=False, exists=True,
        help="With --finish: what is known of records that the copy lacks, from notary log salvage --copy.",
    ),
]  # fmt: skip
LossOption = Annotated[
    int | None,
    typer.Option("--accept-loss", min=0, help="The number that the salvage counts as lost, and is accepted."),
]


UntilOption = Annotated[
    int | None,
    typer.Option(
        "--until-offset", min=0, help="Last offset to copy: of a log that was cut, and has other records afterwards."
    ),
]


def copy_log(
    *,
    to: ToOption = None,
    follow: FollowOption = False,
    status: StatusOption = False,
    finish: FinishOption = False,
    salvage: SalvageOption = None,
    accept_loss: LossOption = None,
    until_offset: UntilOption = None,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the log to a second site's log: the same records at the same offsets, each once, whatever is killed when.

    A copy goes on after its last record, once its newest records were compared with the log's. One that differs, and
    one that somebody else writes, is refused. Without --follow the copy ends as a log that replicas may write.
    --finish --salvage first puts lost records at the offsets that the salvage knows; it may be repeated.
    """
    require_archive()
    if follow + status + finish > 1:
        raise ConfigError("--follow, --status and --finish exclude one another")
    if not finish and (salvage is not None or accept_loss is not None):
        raise ConfigError("--salvage and --accept-loss go with --finish")
    if until_offset is not None and follow + status + finish:
        raise ConfigError("--until-offset goes with a copy that ends there: without --follow, --status and --finish")
    settings = load(find_config(config))
    target = _target(settings, to)
    if follow:
        _follow(settings, target)
    if status:
        _tell(_status(settings.log.settings, target), as_json)
    elif finish:
        _tell(_finish(settings, target, salvage, accept_loss), as_json)
    else:
        _tell(_copy(settings.log.settings, target, until_offset), as_json)


def _target(config: Config, to: Path | None) -> LogSettings:
    named = to or config.log_copy.to
    if named is None:
        raise ConfigError("name the second site's configuration file: --to FILE, or log_copy.to")
    return load(named).log.settings


def _copy(source: LogSettings, target: LogSettings, until: int | None) -> dict[str, Any]:
    from pipeline.log_copy import LogCopier, end_of

    began_s = time.monotonic()
    copier = LogCopier(source, target, time.sleep, until)
    copier.open()
    with progress("copied", end_of(source) if until is None else until + 1, copier.last + 1) as show:
        count = copier.copy(show, goes_on=False)
    return {"copied_records": count, "last": copier.last, "took_s": round(time.monotonic() - began_s, 3)}


def _follow(config: Config, target: LogSettings) -> NoReturn:
    from pipeline.log_copy import follow_copy, lag_s

    source, settings = config.log.settings, config.log_copy
    with ending_for_good():
        follow_copy(
            source,
            target,
            follower_metrics(
                "log_copy",
                settings.metrics,
                source,
                lag_s=lambda last: lag_s(source, last, time.time()),
                hosts=config.known_hosts,
            ),
            interval_s=settings.interval_s,
            tell_failure=tell_failure,
            now_s=time.time,
            sleep_s=time.sleep,
        )


def _status(source: LogSettings, target: LogSettings) -> dict[str, Any]:
    from pipeline.log_copy import end_of, lag_s, refuse_itself
    from pipeline.sources.topic import look_at

    end = end_of(target)
    found: dict[str, Any] = {"copy_end": end}
    try:
        refuse_itself(source, target)
        log_end = look_at(source).end
        behind_s = lag_s(source, end - 1, time.time())
        found |= {"log_end": log_end, "behind_records": log_end - end, "behind_s": round(behind_s, 3)}
    except (LogUnavailable, LogRefused) as error:
        found |= {"log": error.detail}
    return found


def _finish(config: Config, target: LogSettings, salvage: Path | None, accept_loss: int | None) -> dict[str, Any]:
    from pipeline.log_copy import finish_copy
    from pipeline.sources.topic import look_at

    if salvage is None:
        finish_copy(target)
    else:
        _put_in_place(config, target, salvage, accept_loss)
    view = look_at(target)
    return {"copy_end": view.end, "log_id": view.topic_id}


def fill_log(
    salvage: FileArgument, accept_loss: LossOption = None, config: ConfigChoice = None, as_json: JsonOption = False
) -> None:
    """Put lost records at the end of a log that was cut, so that no offset is used twice. It may be repeated.

    All replicas must be stopped. The salvage is one of this log's end: notary log salvage --cut. Then: notary restore
    adopt --salvage FILE.
    """
    require_archive()
    from pipeline.sources.topic import look_at

    settings = load(find_config(config))
    _put_in_place(settings, settings.log.settings, salvage, accept_loss)
    view = look_at(settings.log.settings)
    _tell({"log_end": view.end, "log_id": view.topic_id}, as_json)


def _put_in_place(config: Config, target: LogSettings, salvage: Path, accept_loss: int | None) -> None:
    from pipeline.log_copy import end_of, finish_with_salvage

    known = read_salvage(salvage, archive_public_key(config, None))
    published = published_offset(config)
    with progress("written", known.last + 1, end_of(target)) as show:
        finish_with_salvage(
            target, known, accept_loss=accept_loss, published=published, sleep_s=time.sleep, on_record=show
        )


def _tell(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        out.print(f"{name.replace('_', ' '):>15}  {value}", markup=False)
