# Every target sets up what it needs on a fresh machine; a second call starts at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint speed clean

demo: $(READY)
	$(BIN)/archipel demo

test: lint
	$(BIN)/python -m pytest -q -n auto --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Arguments follow as in `make speed ARGS="--fast --only W1,W2"`; `make speed ARGS=--help` lists them.
speed: $(READY)
	PYTHONPATH=benchmarks $(BIN)/python -m speed $(ARGS)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
