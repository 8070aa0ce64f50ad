# `make setup` prepares the machine and the clone; most targets call it, and when all is there it takes a second.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE # a cluster starts dozens of processes, all of the same modules

.PHONY: help setup setup-tests try run demo-pipeline drill test test-all test-rest matrix check lint fmt bench bench-pipeline faults power-cuts kill-loop judge overload faults-quick runbooks profile-postgres lognode watch workers soak completeness fuzz embedded split-topics install clients dist docs helm containers lake kms jmx sbom audit lock jar-checksums clean

help: ## Show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Prepare a Debian machine: system packages, .venv, Kafka, Spark (a second run takes seconds)
	@scripts/setup.sh

setup-tests:
	@scripts/setup.sh --for-tests

run: ## Bring up the whole cluster, notarise, kill the active, check every answer; ARGS="--profile postgres": without Java
	@scripts/setup.sh $(if $(filter postgres raft embedded --memory-log,$(ARGS)),--without-java)
	@$(BIN)/notary demo $(ARGS)

try: ## Notarise a first request on a replicated notary of this machine, which needs Python alone; ARGS=--exit: end it then
	@scripts/setup.sh --to-try
	@scripts/try.sh $(ARGS)

demo-pipeline: setup ## Archive, tabulate, audit, rebuild, compare, restore and report what `make run` left: 11 commands, 2 to 3 minutes
	@$(BIN)/notary demo-pipeline

drill: setup ## Make a replica, a broker, the database and whole sites fail: answers lost and seconds without, measured
	@$(BIN)/notary recovery drill $(ARGS)

test: setup-tests ## Run the quick tests: a good proof of each promise on each real part; 24 minutes on two cores
	@scripts/test.sh $(ARGS)

test-all: setup-tests ## Run all tests that CI runs, phase by phase, each with a time budget; 50 minutes
	@scripts/test.sh --all $(ARGS)

test-rest: setup-tests ## Run what `make test` leaves out of `make test-all`
	@scripts/test.sh --rest $(ARGS)

check: lint ## Format, lint, types, import rules and the quick tests
	@scripts/test.sh core

lint: setup ## Format, lint, types and import rules
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

fmt: setup ## Format the code and repair what the linter can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

matrix: setup-tests ## Tests of each part's edge on the oldest and newest Kafka, Postgres, Python and HAProxy; ARGS=kafka-oldest: of one; needs root
	@scripts/matrix/run.sh $(ARGS)

test-oracle: setup ## The conformance suite on a real Oracle: DSN=oracle://USER:PASSWORD@HOST:PORT/SERVICE, its schema is dropped
	@[[ -n "$(DSN)" ]] || { echo "NO ORACLE WAS TESTED: give DSN=oracle://USER:PASSWORD@HOST:PORT/SERVICE" >&2; exit 2; }
	@NOTARY_TEST_ORACLE='$(DSN)' $(BIN)/pytest tests/integration/test_oracle.py $(ARGS)

bench: setup ## Measure throughput, latency and outages; writes build/bench.json
	@$(BIN)/python -m tests.bench $(ARGS)

bench-pipeline: setup ## Measure the data pipeline against replay and the notary; writes build/bench-pipeline.json
	@$(BIN)/python -m tests.bench.pipeline $(ARGS)

FAULTS_PROFILE = $(filter-out kafka,$(or $(LOG),kafka)$(if $(filter all,$(SERVING)),-workers))
faults: setup-tests ## Every fault against real servers, at full length; LOG=postgres, raft or embedded: that profile; SERVING=all: all replicas serve
	@rm -f build/faults$(FAULTS_PROFILE:%=-%).json
	@$(BIN)/pytest -q -m "not short" --quiet-machine $(LOG:%=--log-kind %) $(SERVING:%=--serving %) tests/faults $(ARGS); code=$$?; $(BIN)/python -m tests.faults.results $(FAULTS_PROFILE) || code=1; exit $$code

power-cuts: setup-tests ## All power is lost, or a rack's, on disks that lose what was not synced; LOG, SERVING: as for faults; DISKS=torn or btrfs: stricter ones
	@$(BIN)/pytest -q -m "not short" $(LOG:%=--log-kind %) $(SERVING:%=--serving %) $(DISKS:%=--disks %) tests/integration/test_lossy_disk.py tests/integration/test_power_cut_parts.py tests/faults/power $(ARGS)

kill-loop: setup ## Kill the active twenty times under applications that use the client library
	@$(BIN)/pytest -m slow tests/faults/test_kill_loop.py $(ARGS)

judge: setup-tests ## Porcupine, a judge that is not ours, on contending clients' histories: three profiles, one or all serving; needs Go
	@scripts/porcupine/build.sh
	@$(BIN)/pytest -q tests/unit/checker/test_porcupine.py
	@failed=; for log in kafka postgres embedded; do for serving in one all; do echo "=== log $$log, serving $$serving"; \
		$(BIN)/pytest -q -m "not short" --log-kind $$log --serving $$serving tests/faults/test_contention.py tests/faults/test_fail_over.py $(ARGS) || failed+=" $$log/$$serving"; \
	done; done; [[ -z $$failed ]] || { echo "FAILED:$$failed" >&2; exit 1; }

overload: setup ## Three times what a real replica's log takes, for a minute, then by one to three workers; writes build/overload*.json*
	@rm -f build/overload.json build/overload-workers.jsonl
	@$(BIN)/pytest -m slow tests/faults/test_overload.py $(ARGS); code=$$?; cat build/overload.json build/overload-workers.jsonl; exit $$code

faults-quick: setup ## The faults that CI runs, each once
	@scripts/test.sh --all faults-quick

runbooks: setup-tests ## Play every runbook's commands on real clusters
	@$(BIN)/pytest tests/runbooks $(ARGS)

PROFILE := cluster operations import status_page_cluster postgres_profile
profile-postgres: setup-tests ## The clusters' tests, runbooks and faults that need no broker, with the log on Postgres
	@$(BIN)/pytest -q --log-kind postgres $(PROFILE:%=tests/integration/test_%.py) $(ARGS)
	@$(BIN)/pytest -q tests/integration/test_demo_logs.py $(ARGS)
	@$(BIN)/pytest -q --log-kind postgres tests/runbooks/test_runbooks.py tests/runbooks/test_switchover_and_keys.py $(ARGS)
	@$(BIN)/pytest -q --log-kind postgres tests/runbooks/test_losses.py tests/runbooks/test_postgres_log.py $(ARGS)
	@$(BIN)/pytest -q --log-kind postgres -m "not slow" tests/faults/test_fail_over.py $(ARGS)
	@$(BIN)/pytest -q --log-kind postgres -m "not short" tests/faults/test_disks.py tests/faults/test_system.py $(ARGS)

lognode: setup ## The log node of our own consensus, as real processes: killed, frozen, torn, replaced
	@$(BIN)/pytest tests/lognode $(ARGS)

watch: setup-tests ## Two real replicas under `notary watch`: ended, killed, frozen, misconfigured; the watch killed; about 3 min
	@$(BIN)/pytest -q -m slow tests/integration/test_watch_replicas.py $(ARGS)

workers: setup-tests ## Three real replicas that all serve, and whose holder of the lock is killed and frozen: log on Kafka, on Postgres, without a database
	@$(BIN)/pytest -q -m slow tests/integration/test_workers.py $(ARGS)
	@$(BIN)/pytest -q -m slow --log-kind postgres tests/integration/test_workers.py $(ARGS)
	@$(BIN)/pytest -q -m slow --log-kind embedded tests/integration/test_workers.py $(ARGS)

soak: setup ## Simulate for hours: new seeds until stopped or until one fails
	@$(BIN)/python -m tests.raft.soak
	@$(BIN)/python -m tests.simulation.soak $(ARGS)

completeness: setup ## Simulate whatever can go wrong once under a lease, and whatever can go wrong twice along a submission and a registration
	@$(BIN)/pytest -q -s -m slow tests/simulation/test_enumerated.py $(ARGS)

fuzz: setup ## Thousands of hostile values at each socket of a running replica; CI tries few
	@$(BIN)/pytest -m slow tests/integration/test_fuzz_replica.py $(ARGS)

clients: setup ## Build and test the Python, Java and TypeScript clients, and run them against a cluster across a fail-over
	@$(BIN)/pytest tests/clients $(ARGS)

dist: setup ## Build the notary's and the client's wheel and source archive into dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist
	@$(BIN)/python scripts/client_package.py build/client-package
	@$(BIN)/python -m build --no-isolation --outdir dist build/client-package

docs: setup ## The pages as a site in build/site, links checked; man pages in build/man, shell completion in build/completion
	@$(BIN)/python scripts/docs_site.py build/site-pages
	@$(BIN)/mkdocs build 2>&1 | sed "/^INFO/d"; exit $${PIPESTATUS[0]}
	@$(BIN)/python scripts/docs_site.py --man build/man
	@$(BIN)/python scripts/docs_site.py --completion build/completion
	@echo "build/site/index.html, build/man, build/completion"

helm: ## Build Helm at its pinned version, lint the chart, and hold what it makes against Kubernetes' schemas
	@scripts/helm/build.sh
	@$(BIN)/pytest -q tests/unit/project/test_chart.py $(ARGS)

containers: setup ## Build the linter of container files, and hold Containerfiles and compose files against BuildKit's and Compose's rules
	@scripts/containers/build.sh
	@$(BIN)/pytest -q tests/unit/project/test_deploy.py $(ARGS)

embedded: setup ## Participants without a database, the slow tests: archive, audit, a lost log restored, keys in the log; about 7 min
	@$(BIN)/pytest -q -m slow tests/integration/test_embedded_archive.py tests/integration/test_embedded_restore.py tests/integration/test_embedded_parties.py $(ARGS)

install: setup-tests ## Follow both install pages on real servers, and start the images' and compose files' containers in namespaces
	@$(BIN)/pytest -q -rs tests/integration/test_install.py tests/integration/test_image.py tests/integration/test_image_of_the_whole.py $(ARGS)

split-topics: setup-tests ## Large requests in a second topic, the slow tests: every job, the runbook, a lost broker; about 5 min
	@$(BIN)/pytest -q -m slow tests/pipeline/test_split_topics.py tests/runbooks/test_split_topics.py tests/integration/test_log_kafka.py $(ARGS)

lake: setup-tests ## The pipeline in the users' lake: real S3 and HDFS, Delta, a metastore and Kafka's security on Spark, a Spark cluster, YARN; needs Go and Maven
	@scripts/versitygw/build.sh
	@$(BIN)/pytest -q tests/integration/test_places_hdfs.py $(ARGS)
	@$(BIN)/pytest -q tests/unit/pipeline/test_places.py tests/unit/pipeline/test_archive_in_objects.py tests/integration/test_places_s3.py tests/integration/test_tables_s3.py tests/pipeline/test_archive_s3.py $(ARGS)
	@$(BIN)/pytest -q tests/pipeline/test_archive_hdfs.py $(ARGS)
	@$(BIN)/pytest -q tests/pipeline/test_tables_on_spark.py tests/pipeline/test_tables_query.py tests/pipeline/test_catalogue.py tests/pipeline/test_secured_source.py tests/pipeline/test_packages.py tests/pipeline/test_cluster.py tests/pipeline/test_yarn.py tests/pipeline/test_failures.py tests/pipeline/test_brokers_defaults.py $(ARGS)
	@$(BIN)/pytest -q tests/pipeline/test_kills.py tests/pipeline/test_log_copy.py tests/pipeline/test_restore_elsewhere.py tests/pipeline/test_drill.py $(ARGS)

kms: setup-tests ## The notary's key in a file, on a token and in a real key management service, and its replicas through an outage of it; needs Go
	@scripts/local-kms/build.sh
	@$(BIN)/pytest -q tests/unit/active/test_kms.py tests/integration/test_signer.py tests/integration/test_signer_kms.py $(ARGS)
	@$(BIN)/pytest -q -m slow tests/integration/test_kms_cluster.py $(ARGS)

jmx: setup-tests ## A real broker shows what the dashboard asks for, through Prometheus' JMX exporter; needs Maven
	@$(BIN)/pytest -q -m slow tests/integration/test_broker_metrics.py $(ARGS)

sbom: setup ## Write the software bill of materials, CycloneDX, to build/sbom.json
	@$(BIN)/python scripts/sbom.py build/sbom.json

audit: setup ## Ask the network whether weaknesses are known in any pinned package; nothing else calls this
	@scripts/audit.sh $(ARGS)

lock: setup ## Pin the newest fitting packages again where pyproject.toml changed; ARGS=--upgrade for all
	@scripts/lock.sh $(ARGS)

jar-checksums: ## After a change of a pom.xml in scripts/jars: fetch the jars and write their checksums
	@scripts/jars/fetch.sh kafka --update
	@for part in kafka postgres; do for age in oldest newest; do scripts/jars/fetch.sh $$part-$$age --update; done; done
	@scripts/jars/fetch.sh spark --update
	@scripts/jars/fetch.sh kafka-tools --update
	@scripts/jars/fetch.sh delta --update
	@scripts/jars/fetch.sh hadoop --update
	@scripts/jars/fetch.sh jmx --update

clean: ## Remove what was built or measured, not the environment and not the data
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
