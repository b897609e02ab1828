# Every target works on a fresh checkout: scripts/bootstrap.sh makes .venv (and finds Java) first, then runs the command
# inside it. Nothing here prints to standard output but the commands themselves: `make bench` stays machine-readable.
RUN := @scripts/bootstrap.sh
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo demo-kafka test test-long test-spark archive compiled lint format docs soak soak-ends soak-views simulate bench clean

help:
	@printf '%s\n' \
	  'make setup              create .venv with everything needed; find or install Java 17+' \
	  'make demo               payments, fraud alerts, checkpoints and a killed keeper, in under two minutes, and a page that' \
  '                        shows them; make demo ARGS=--stay goes on until Ctrl-C, and the buttons of the page are yours' \
	  'make demo-kafka         the same from Kafka to Kafka, while the broker and the driver are killed in turn' \
	  'make test               linters, types, layers, and all tests but the long ones and the soak tests' \
	  'make test-long          the long tests, some seventy; CI runs them after `make test`' \
	  'make test-spark VERSION=4.1.4   the tests of spark/ with another version of PySpark' \
  'make lint               linters, types and layers only' \
	  'make format             rewrite the code in the project format' \
	  'make docs               build the site of the documentation, with the reference, in build/site' \
	  'make soak               the long-running tests (some 200 jobs with faults), and properties with many more examples' \
  '                        one again: make soak ARGS="tests/spark/test_faults_slow.py -k seed017"' \
	  'make soak-ends         twenty minutes in which a job from Kafka into Kafka and PostgreSQL, and all it needs, is killed' \
	  'make soak-views        20,000 chains of operators of views, and 300 queries in jobs with kills: SEED=1 CASES=20000 QUERIES=300' \
	  'make simulate           hours of a job with faults in virtual time: SEED=1 SEEDS=10 PARTITIONS=100 HOURS=2' \
  'make bench NAME=x       run benchmarks/x.py (ARGS="..." passes options); JSON lines on standard output' \
	  'make clean              remove .venv, caches and build products'

setup:
	$(RUN)

demo:
	$(RUN) python scripts/demo.py $(ARGS)

demo-kafka:
	$(RUN) python scripts/demo_kafka.py $(ARGS)

# All tests run in three processes, a file in one of them: they wait for each other's processes more than they compute.
# Those that are named run in one.
# What they import is compiled once, whatever the environment says.
test: export PYTHONDONTWRITEBYTECODE =
test: setup
	@$(MAKE) -j2 -O --no-print-directory lint $(if $(ARGS),,archive compiled)
	$(RUN) python -m pytest $(or $(ARGS),$(PARALLEL) -m "not soak and not long")

# Each takes five seconds or more, and others test most of what it does: for whoever waits, `make test` leaves them out.
test-long: export PYTHONDONTWRITEBYTECODE =
test-long: export STRANDLINE_BROWSER = 1
test-long: setup archive
	$(RUN) python -m pytest -m "long and not soak" $(or $(ARGS),$(PARALLEL))

# Not the archive of classes, which is of one version of Spark.
test-spark: setup
	$(RUN) scripts/other_spark.sh $(VERSION) $(or $(ARGS),tests/spark $(PARALLEL) -m "not soak and not long")

# What the JVMs of tests load Spark's classes from; only for all tests is it worth the while.
archive:
	$(RUN) python -m tests.jvm

# Each process that runs tests imports all of them, and rewrites their assertions unless that was done.
compiled:
	@scripts/bootstrap.sh python -m pytest --collect-only -qq >/dev/null || true

lint:
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) lint-imports
	$(RUN) python scripts/voice.py

format:
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

docs:
	$(RUN) python scripts/docs.py $(ARGS)

# JVMs compile and have all libraries, as users' do; those of other tests are light (tests/jvm.py).
soak: export STRANDLINE_TEST_JVM = users
soak: setup
	$(RUN) python -m pytest -m soak $(ARGS)
	$(RUN) env STRANDLINE_TEST_MODE=changelog python -m pytest $(ARGS)
	$(RUN) python -m pytest -m hypothesis --hypothesis-profile=soak --timeout=3600 -o faulthandler_timeout=3700 $(ARGS)
	$(if $(ARGS),,@$(MAKE) --no-print-directory soak-views)

# Prints the seeds that fail; a chain is made as small as it can be.
soak-views: setup
	$(RUN) python -m tests.views.random_chains --seed $(or $(SEED),1) --cases $(or $(CASES),20000)
	$(RUN) python -m tests.spark.views.random_lives --seed $(or $(SEED),1) --queries $(or $(QUERIES),300)

soak-ends:
	$(RUN) python -m tests.spark.bothends $(ARGS)

simulate:
	$(RUN) python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
	  $(if $(PARTITIONS),--partitions $(PARTITIONS)) $(if $(HOURS),--hours $(HOURS)) $(ARGS)

bench:
	@test -n "$(NAME)" || { echo 'usage: make bench NAME=keyed_counter [ARGS="--quick"]' >&2; exit 2; }
	$(RUN) python -m benchmarks.$(NAME) $(ARGS)

clean:
	@scripts/clean.sh
