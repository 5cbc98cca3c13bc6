# Every target sets up what it needs on a fresh machine; a second call starts at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint soak speed results clean

demo: $(READY)
	$(BIN)/archipel demo

test: lint
	$(BIN)/python -m pytest -q -n auto --dist worksteal $(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=src:serve/src $(BIN)/mypy --config-file tests/mypy.ini tests
	MYPYPATH=src:serve/src $(BIN)/mypy --config-file tests/mypy.ini benchmarks
	$(BIN)/lint-imports --no-cache --no-logo

# Long tests, marked `soak`, which `make test` leaves out; the results go to docs/results/soak.md.
soak: $(READY)
	$(BIN)/python benchmarks/soak.py $(ARGS)

# Arguments follow as in `make speed ARGS="--fast --only W1,W2"`; `make speed ARGS=--help` lists them.
speed: $(READY)
	PYTHONPATH=benchmarks $(BIN)/python -m speed $(ARGS)

# All results in docs/, made anew: hours. `benchmarks/README.md` lists them one by one.
results: $(READY)
	$(BIN)/python benchmarks/fashion_mnist.py
	$(BIN)/python benchmarks/expectation.py
	$(BIN)/python benchmarks/multipliers.py --large
	$(BIN)/python benchmarks/em.py
	$(BIN)/python benchmarks/em_real.py
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/settings.py
	$(BIN)/python benchmarks/out_of_core.py
	$(BIN)/python benchmarks/federations.py
	$(BIN)/archipel bench table1 --fast
	$(BIN)/archipel bench figure2 --fast
	$(BIN)/archipel bench theorem1
	$(BIN)/archipel bench strangers
	$(BIN)/archipel bench routing
	$(BIN)/archipel bench consensus
	$(BIN)/archipel bench paths
	$(BIN)/archipel bench em
	PYTHONPATH=benchmarks $(BIN)/python -m speed $(ARGS)
	cp results/table1-fast/table1.md docs/results/table1-fast.md
	cp results/table1-fast/table1.csv docs/results/table1-fast.csv
	cp results/figure2-fast/figure2.md docs/results/figure2-fast.md
	cp results/figure2-fast/figure2.png docs/figures/figure2-fast.png
	cp results/consensus/consensus.md results/consensus/consensus.csv docs/results/
	cp results/strangers/strangers.json results/speed/speed.md results/speed/speed.json docs/results/
	cp results/theorem1/theorem1.png results/strangers/strangers.png results/speed/speed.png docs/figures/
	cp results/routing.png results/consensus-paths.png results/em/em-field.png results/em/em-regimes.png docs/figures/

$(READY): pyproject.toml serve/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e serve -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
