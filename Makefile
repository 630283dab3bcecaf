# Every target sets up what it needs by itself; a second call takes about a second.
BIN := .venv/bin
PYTHON ?= python3
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup python demo test test-quick test-slow test-rdma test-gpu mutation lint docs docs-version dist bench lock client clean
# Tests start thousands of short Python processes: without bytecode files each of them compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
SCRIPTS = $(shell find cli .ci images bench docs playbooks tests -type f -exec awk 'FNR == 1 && /^\#!.*sh$$/ { print FILENAME } { nextfile }' {} +)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## Python environment and container engine, only what is missing
	@cli/setup.sh

python:
	@cli/setup.sh python

demo: setup ## two virtual nodes, probed; an image that fits their NICs, built and run; a node that it doesn't fit
	@cli/demo.sh

test: setup lint ## lint and all tests but the slow ones
	tests/once_more.sh $(BIN)/pytest -m "not slow" -n 3 tests/unit $(PYTEST_ARGS)
	tests/programs.sh
	tests/once_more.sh $(BIN)/pytest -m "not slow" -n 4 --no-loadscope-reorder tests/integration $(PYTEST_ARGS)

test-quick: python ## two minutes: style, types, and tests of every package; no container engine
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --quick -n 2 -q tests/unit $(PYTEST_ARGS)

test-slow: setup ## the tests that take minutes
	$(BIN)/pytest -m slow tests/integration $(PYTEST_ARGS)

test-rdma: setup ## real RDMA: two virtual machines with soft-RoCE and the worker image's files
	tests/rdma/setup.sh
	@[ -n "$$ROCSTACK_RDMA_IMAGE" ] || $(BIN)/rocstack build --nic tcp --role worker
	tests/once_more.sh $(BIN)/pytest tests/rdma $(PYTEST_ARGS)

test-gpu: ## the trainer on this machine's GPU, by the PyTorch and pytest of PYTHON (python3); skipped without a GPU
	@if $(PYTHON) -c 'import numpy, pytest, torch, zstandard'; then $(PYTHON) -m pytest tests/gpu $(PYTEST_ARGS); \
	else echo "skipped: $(PYTHON) lacks what the last line names; PYTHON=... names another one"; fi

mutation: python ## change the gate's code in every small way
	tests/mutation.sh

lint: python ## style, types, the order of the packages, shell scripts and workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	PYTHONPATH=images/trainer $(BIN)/lint-imports --config images/trainer/pyproject.toml
	$(BIN)/shellcheck --exclude=SC1091 $(SCRIPTS)
	PATH="$(CURDIR)/$(BIN):$$PATH" ansible-lint --offline -q --profile production playbooks
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.gitlab-ci .gitlab-ci.yml
	$(BIN)/zizmor --offline --quiet --persona auditor .github/workflows
	$(MKDOCS) build --quiet
	@if command -v actionlint >/dev/null; then actionlint; else echo "actionlint is not installed: skipped"; fi

docs: python ## the documentation as a site, in .rocstack/site; a broken link or anchor is an error
	$(BIN)/python docs/generate.py --check
	$(MKDOCS) build
	@echo "open .rocstack/site/index.html; for its search: $(BIN)/mkdocs serve"

docs-version: docs ## this version's pages beside those of other versions, committed to the branch gh-pages
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases "$$(.ci/version)" latest
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 mike set-default latest
	@echo "push it with: git push origin gh-pages"

dist: python ## wheel and sdist of rocstack, in dist/
	.ci/version
	$(BIN)/hatchling build --clean

bench: setup ## measure builds, the NIC's library, the probe and the trainer beside what is done today
	@failed=; for part in build nic/build.py nic/probe.py train; do \
	  $(BIN)/python bench/$$part || failed="$$failed bench/$$part"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

lock: python ## resolve requirements.lock again (UPGRADE=--upgrade for the newest versions)
	$(BIN)/pip-compile --quiet $(UPGRADE) --generate-hashes --allow-unsafe --strip-extras --all-extras --all-build-deps \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header --no-annotate \
	  --output-file requirements.lock pyproject.toml

client: python ## generate the TypeScript client's types again (needs npm)
	$(BIN)/python -m rocstack.service --openapi >clients/typescript/openapi.json
	cd clients/typescript && npm ci --no-audit --no-fund && npm run generate

clean: ## remove the Python environment and rocstack's own files here
	rm -rf .venv .rocstack
