# Every target sets up what it needs; nothing is installed outside .venv, but for Debian's package
# python3-venv where it is missing. ARGS="..." is passed on to pytest, the demo or the benchmarks.

PYTHON_OF_VENV := .venv/bin/python

# Without files of bytecode, each of the thousands of processes that tests start would compile the package.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install install-spark test test-long test-slice test-crashes test-spark test-measured test-frames test-fast torture test-kafka test-page torture-kafka simulate simulate-mutants cluster-test nexmark sink-at-length attacks fuzz lint types demo demo-live demo-trending bench docker-test clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

install: ## install the package and its tools into .venv; leaves .venv/bin/s4
	@bash tools/install

install-spark: ## install Spark, a Java and the demo's data too
	@bash tools/install spark

# so many files run side by side: most tests wait for sockets, processes or a disk now and then
JOBS ?= 4
BESIDE = -n $(JOBS) --dist loadfile --no-loadscope-reorder # tests/conftest.py has the order

# Tests marked ``long`` are left to test-long: processes that are killed, moved and deployed, jobs of Spark, and
# what measures, which has the machine for itself. One marked ``short``, too, stands for its kind in make test.
SPARK := tests/spark tests/docs/test_spark_doc.py \
	tests/example_apps/test_flights.py tests/example_apps/test_trending_demo.py
MEASURED := tests/process/test_prompt.py tests/bench/test_bench.py tests/test_torture.py tests/test_attacks.py

test: install-spark ## run all tests but those of test-long; JOBS=1 for one at a time
	$(PYTHON_OF_VENV) -m pytest $(BESIDE) -m "not long or short" $(ARGS)

test-long: test-crashes test-spark test-measured test-frames ## run what takes longer; make -k goes on after a failure

test-crashes: install-spark ## run the tests in which processes are killed, moved and deployed
	$(PYTHON_OF_VENV) -m pytest $(BESIDE) -m long $(patsubst %,--ignore=%,$(SPARK) $(MEASURED)) $(ARGS)

test-spark: JOBS := 2 # each has a JVM or more, which takes a core
test-spark: install-spark ## run the tests that need Spark
	$(PYTHON_OF_VENV) -m pytest -o faulthandler_timeout=900 $(BESIDE) $(SPARK) $(ARGS)

test-measured: install-spark ## run every benchmark and the torture in short, with their checks
	$(PYTHON_OF_VENV) -m pytest $(MEASURED) $(ARGS)

test-slice: install-spark ## run three minutes of test-long; another part after each commit, or NUMBER=
	$(PYTHON_OF_VENV) -m pytest -m long --slice $(or $(NUMBER),$(shell git rev-list --count HEAD)) $(ARGS)

test-kafka: install ## run the tests of Kafka over a broker, which Maven downloads; without Maven they are skipped
	-@bash tools/install kafka
	$(PYTHON_OF_VENV) -m pytest tests/kafka $(ARGS)

test-page: install ## run the page in Chromium; without one, or without Playwright, this is SKIPPED
	@$(PYTHON_OF_VENV) -c 'import playwright' 2>/dev/null || \
		$(PYTHON_OF_VENV) -m pip install --quiet --group page </dev/null || true
	@command -v chromium >/dev/null || echo "SKIPPED: there is no chromium; apt-get install chromium" >&2
	$(PYTHON_OF_VENV) -m pytest tests/page $(ARGS)

torture-kafka: install ## an app with topics in and out, killed 200 times in 1 to 3 containers; 20,000 histories of its outlet
	-@bash tools/install kafka
	KILLS=100 $(PYTHON_OF_VENV) -m pytest -o faulthandler_timeout=0 tests/kafka/test_kafka_output.py \
		-k "members_and_of_the_broker or come_and_go" $(ARGS)
	HISTORIES=20000 $(PYTHON_OF_VENV) -m pytest tests/runtime/outputs/test_outlet.py $(ARGS)

test-frames: install ## send FRAMES= frames at all bounds to a node, with TLS and without
	FUZZ_FRAMES=$(or $(FRAMES),1000000) $(PYTHON_OF_VENV) -m pytest -o faulthandler_timeout=0 $(BESIDE) \
		tests/fuzz/test_fuzz.py -k bounds $(ARGS)

test-fast: install ## run the tests that need neither Spark nor much time
	$(PYTHON_OF_VENV) -m pytest $(BESIDE) -m "not slow and not spark" $(ARGS)

torture: install ## kill and stop nodes, logs and programs, fill disks, cut the power, go back to savepoints; SEED=, SECONDS= to repeat
	PYTHONPATH=tests $(PYTHON_OF_VENV) -m torture --seconds $(or $(SECONDS),180) $(if $(SEED),--seed $(SEED)) $(ARGS)

simulate: install ## run SEEDS= small clusters in memory, which the seeds from FIRST= on kill, cut and pause; ARGS=--large for large ones
	PYTHONPATH=tests $(PYTHON_OF_VENV) -m simulate --seeds $(or $(SEEDS),200) --first $(or $(FIRST),0) $(ARGS)

simulate-mutants: install ## put known faults back into a copy, and say after how many of SEEDS= clusters in memory find each
	PYTHONPATH=tests $(PYTHON_OF_VENV) -m mutants --seeds $(or $(SEEDS),2000) --first $(or $(FIRST),0) $(ARGS)

cluster-test: install-spark ## kill, stop and cut machines of a cluster over ZooKeeper; SEED=, MINUTES= to repeat
	@$(PYTHON_OF_VENV) -c 'import moto, s3fs' 2>/dev/null || \
		$(PYTHON_OF_VENV) -m pip install --quiet --group s3 </dev/null
	PYTHONPATH=tests $(PYTHON_OF_VENV) -m torture --scene machines --seconds $$(( $(or $(MINUTES),10) * 60 )) $(if $(SEED),--seed $(SEED)) $(ARGS)

nexmark: install-spark ## compare queries over EVENTS= events in two containers with a database's
	NEXMARK_EVENTS=$(or $(EVENTS),1000000) $(PYTHON_OF_VENV) -m pytest -o faulthandler_timeout=0 tests/example_apps/test_nexmark_at_length.py $(ARGS)

sink-at-length: install-spark ## WRITES= writes, one of ROWS= rows by TASKS= tasks, and KILLS= killed drivers, into one log each
	SINK_WRITES=$(or $(WRITES),20000) SINK_ROWS=$(or $(ROWS),5000000) SINK_TASKS=$(or $(TASKS),12000) SINK_KILLS=$(or $(KILLS),20) \
		$(PYTHON_OF_VENV) -m pytest -s -o faulthandler_timeout=0 tests/spark/test_sink_at_length.py $(ARGS)

attacks: install ## compare a healthy sender beside attackers with one beside honest peers; SECONDS= for each
	PYTHONPATH=tests $(PYTHON_OF_VENV) -m attacks --seconds $(or $(SECONDS),20) $(ARGS)

fuzz: install ## fuzz all that decodes; INPUTS= for each; in SECONDS=, what has its turn. Says SKIPPED without atheris
	@$(PYTHON_OF_VENV) -c 'import atheris' 2>/dev/null || \
		$(PYTHON_OF_VENV) -m pip install --quiet --only-binary :all: --group fuzz </dev/null || true
	PYTHONPATH=tests $(PYTHON_OF_VENV) -m fuzz --inputs $(or $(INPUTS),20000) $(if $(SECONDS),--seconds $(SECONDS) --turn $(shell git rev-list --count HEAD)) $(ARGS)

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

bench: install-spark ## run the benchmark NAME=, or all of them with NAME=all; without a name, list them
	@$(PYTHON_OF_VENV) -m benchmarks $(NAME) $(ARGS)

docker-test: ## build the image and run docs/docker.md; ARGS=--faults kills its parts, too. Starts an engine where none runs, or says SKIPPED
	@docker/ci $(ARGS)

clean: ## remove .venv and everything else that was made here
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	rm -rf metastore_db spark-warehouse derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
