# Two commands for a stranger: `make demo` and `make test`. Both set up .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test lint types architecture unit slow bench performance docs format clean release-check

demo: $(READY)
	$(BIN)/gtpool demo --output-dir out

test: lint types architecture unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright

architecture: $(READY)
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/python -m pytest -n 2 -q

slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile -q -m "slow and not gpu"

# Threads that wait asleep: spinning ones turn any other process on the machine into milliseconds.
# The networks side by side are many small steps, for which threads must be awake.
bench: export OMP_WAIT_POLICY = passive
bench: $(READY)
	$(BIN)/python bench/sample.py
	$(BIN)/python bench/attention.py
	$(BIN)/python bench/take.py
	$(BIN)/python bench/connect.py
	$(BIN)/python bench/encodings.py
	$(BIN)/python bench/epoch.py
	$(BIN)/python bench/methods.py
	$(BIN)/python bench/start.py
	env -u OMP_WAIT_POLICY $(BIN)/gtpool bench --device cpu

performance: $(READY)
	$(BIN)/python docs/performance.py > docs/performance.new
	mv docs/performance.new docs/performance-tables.md
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/result_figures.py

docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet

# Takes long and downloads two versions of torch; .ci/release-check names its variables.
release-check:
	PYTHON=$(PYTHON) .ci/release-check

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) out dist site

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("gtpool needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; run: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)
