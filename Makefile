PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint typecheck bench docs clean

# One virtual environment serves every target; it is rebuilt when the dependencies change.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m xattn.models.fetch
	$(BIN)/xattn demo --out demo-output

test: $(VENV)/.installed
	$(MAKE) lint
	$(MAKE) typecheck
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The folders attributions/ and evaluation/ are subpackages of xattn only once built, so mypy reads the built package.
typecheck: $(VENV)/.installed
	rm -rf build/check
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -t build/check .
	cd build/check && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p xattn

# make bench [BENCH="lambda2 capture"] [OUT=before.json]
bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks $(BENCH) $(if $(OUT),--out $(OUT))

docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site demo-output *.egg-info
