# Every target sets up what it needs; nothing is installed outside .venv, but for Debian's package
# python3-venv where it is missing. ARGS="..." is passed on to pytest, the demo or the benchmarks.

PYTHON_OF_VENV := .venv/bin/python

# Without files of bytecode, each of the thousands of processes that tests start would compile the package.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install install-spark test test-long test-crashes test-spark test-measured test-fast torture cluster-test nexmark attacks fuzz lint types demo demo-live demo-trending bench docker-test clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

install: ## install the package and its tools into .venv; leaves .venv/bin/s4
	@bash tools/install

install-spark: ## install Spark, a Java and the demo's data too
	@bash tools/install spark

# so many tests run side by side: most of them wait for sockets, processes or a disk now and then
JOBS ?= 3
BESIDE := -n $(JOBS) --dist loadfile

# what has a target of its own, for it takes long: processes that are killed, deploying, jobs of processes
CRASHES := tests/test_failpoints.py tests/cli/test_job_commands.py tests/cli/test_running_apps.py \
	tests/deploy/test_deploy.py tests/deploy/test_upgrade.py tests/deploy/test_savepoints.py \
	tests/deploy/test_savepoint_parts.py tests/deploy/test_rollback.py tests/deploy/test_many_machines.py \
	tests/deploy/test_state_kills.py \
	tests/deploy/test_repartition.py tests/deploy/test_deployed_layout.py \
	tests/monitoring/test_readiness.py tests/process/test_launch.py \
	tests/example_apps/test_nexmark_at_length.py \
	tests/log/test_log_damage.py \
	tests/runtime/container/test_durable_crashes.py tests/runtime/container/test_moving.py \
	tests/runtime/container/test_state_identity.py \
	tests/runtime/inputs/test_input_crashes.py tests/runtime/inputs/test_startpoints.py \
	tests/runtime/outputs/test_exchange.py tests/runtime/task/poison/test_error_crashes.py \
	tests/runtime/task/poison/test_kills.py tests/runtime/task/poison/test_sending_again.py \
	tests/state/test_damage.py tests/state/test_database.py \
	tests/state/standby/test_standby_crashes.py tests/state/test_remote_task_crashes.py
# what Spark runs, its clusters and drivers that are killed, and the demos of flights
SPARK := tests/spark tests/docs/test_spark_doc.py \
	tests/example_apps/test_flights.py tests/example_apps/test_trending_demo.py
# and what has the machine for itself, for it measures
MEASURED := tests/process/test_prompt.py tests/bench/test_bench.py tests/test_torture.py tests/test_attacks.py \
	tests/test_machines.py

test: install-spark ## run all tests but those of test-long; JOBS=1 for one at a time
	$(PYTHON_OF_VENV) -m pytest $(BESIDE) $(patsubst %,--ignore=%,$(CRASHES) $(SPARK) $(MEASURED)) $(ARGS)

test-long: test-crashes test-spark test-measured ## run what takes longer; make -k goes on after a failure

test-crashes: install-spark ## run the tests in which processes are killed, moved and deployed
	$(PYTHON_OF_VENV) -m pytest $(BESIDE) $(CRASHES) $(ARGS)

test-spark: install-spark ## run the tests that need Spark
	$(PYTHON_OF_VENV) -m pytest $(SPARK) $(ARGS)

test-measured: install-spark ## run every benchmark and the torture in short, with their checks
	$(PYTHON_OF_VENV) -m pytest $(MEASURED) $(ARGS)

test-fast: install ## run the tests that need neither Spark nor much time
	$(PYTHON_OF_VENV) -m pytest $(BESIDE) -m "not slow and not spark" $(ARGS)

torture: install ## kill, stop and cut nodes, logs and tasks, fill disks, cut the power, go back to savepoints; SEED=, SECONDS= to repeat
	PYTHONPATH=tests $(PYTHON_OF_VENV) -m torture --seconds $(or $(SECONDS),180) $(if $(SEED),--seed $(SEED)) $(ARGS)

cluster-test: install-spark ## kill, stop and cut machines of a cluster over ZooKeeper; SEED=, MINUTES= to repeat
	@$(PYTHON_OF_VENV) -c 'import moto, s3fs' 2>/dev/null || \
		$(PYTHON_OF_VENV) -m pip install --quiet --group s3 </dev/null
	PYTHONPATH=tests $(PYTHON_OF_VENV) -m torture --what machines --seconds $$(( $(or $(MINUTES),10) * 60 )) $(if $(SEED),--seed $(SEED)) $(ARGS)

nexmark: install-spark ## compare queries over EVENTS= events in two containers with a database's
	NEXMARK_EVENTS=$(or $(EVENTS),1000000) $(PYTHON_OF_VENV) -m pytest -o faulthandler_timeout=0 tests/example_apps/test_nexmark_at_length.py $(ARGS)

attacks: install ## compare a healthy sender beside attackers with one beside honest peers; SECONDS= for each
	PYTHONPATH=tests $(PYTHON_OF_VENV) -m attacks --seconds $(or $(SECONDS),20) $(ARGS)

fuzz: install ## fuzz all that decodes; INPUTS= for each. Says SKIPPED where there is no atheris
	@$(PYTHON_OF_VENV) -c 'import atheris' 2>/dev/null || \
		$(PYTHON_OF_VENV) -m pip install --quiet --only-binary :all: --group fuzz </dev/null || true
	PYTHONPATH=tests $(PYTHON_OF_VENV) -m fuzz --inputs $(or $(INPUTS),20000) $(ARGS)

lint: install ## check style and formatting
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: install-spark ## check types
	$(PYTHON_OF_VENV) -m mypy

demo: install-spark ## flights through Spark and PEs and back: history into state, then live; checked
	$(PYTHON_OF_VENV) -m apps.flights.history_demo $(ARGS)

demo-live: install-spark ## count a year of flights live over sockets, fed by Spark, and compare
	$(PYTHON_OF_VENV) -m apps.flights.demo $(ARGS)

demo-trending: install-spark ## text through Spark into windows of PEs and back, beside Spark's own windows
	$(PYTHON_OF_VENV) -m apps.trending.demo $(ARGS)

bench: install-spark ## run all benchmarks
	.venv/bin/s4 bench --all $(ARGS)

docker-test: ## build the image and run docs/docker.md; ARGS=--faults kills its parts, too. Starts an engine where none runs, or says SKIPPED
	@docker/ci $(ARGS)

clean: ## remove .venv and everything else that was made here
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	rm -rf metastore_db spark-warehouse derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
