# make run        set up .venv and run the main job on 16 ranks: run.h5, run.png
# make test       set up what is missing and pass the quick suite, on MPICH and on Open MPI: a quarter of an hour on two cores
# make test-all   everything: all parameter sets, the tests marked slow, one process and 2 to 16 ranks, on each MPI, and an installed wheel
# make docs       the documentation: docs/_build/index.html
# make lint       ruff (rules and layout) and mypy
# make clean      remove what runs and tools left; make distclean: the environments that make has made, too
#
# The environments are .venv and .venv-openmpi.  One of these names that you have made yourself stays as it is, and make uses
# .venv-make (.venv-openmpi-make) instead.
# make test TORCH=0 leaves PyTorch out (700 MB in each environment) and does not test the training of models.
# MPI=openmpi runs on Open MPI instead of MPICH;  PYTHON=python3.12 names the Python to build on;
# MPIDEC_TEST_PATIENCE=4 multiplies all time-outs of the tests, for a busy machine;
# RANKS=4 the ranks of make run;  ARGS="--solver extra" goes to the program (make run) or to pytest (make test).

comma := ,
PYTHON ?= python3
MPI ?= mpich
RANKS ?= 16
ARGS ?=
TORCH ?= 1
TRAIN := $(if $(filter 0,$(TORCH)),,torch$(comma))
TRAINERS := $(if $(TRAIN),lightning$(comma)transformers$(comma))
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
# The file .path in an environment says that make has made it (.ci/venv).
made = $(shell if [ ! -L $(1) ] && { [ ! -e $(1) ] || [ -e $(1)/.path ]; }; then echo $(1); else echo $(1)-make; fi)
MPICH := $(call made,.venv)
OPENMPI := $(call made,.venv-openmpi)
VENV := $(if $(filter openmpi,$(MPI)),$(OPENMPI),$(MPICH))
ifeq ($(MAKELEVEL),0)
$(foreach other,$(filter %-make,$(MPICH) $(OPENMPI)),$(info mpidec set-up: $(other:-make=) is not an environment of make and stays as it is; make uses $(other)))
endif

# A stamp says "set up, here, with these files": it is renewed when they change or the checkout has moved.
HERE := $(shell echo "$$PWD $(TORCH)" | cksum | cut -d' ' -f1)
SOURCES := pyproject.toml constraints.txt .ci/venv .ci/compiled.py $(wildcard mpidec/*/*/*.[ch])
# The compiled modules that an environment lacks although there is a compiler for them; those make the stamps old, too.
buildable = $(if $(wildcard $(1)/bin/python),$(shell $(1)/bin/python .ci/compiled.py --buildable 2>&1))
MPICH_SOURCES := $(SOURCES) $(if $(call buildable,$(MPICH)),FORCE)
OPENMPI_SOURCES := $(SOURCES) $(if $(call buildable,$(OPENMPI)),FORCE)

.PHONY: run test test-one-process test-openmpi environment environments test-all docs lint clean distclean FORCE
run: $(VENV)/.run-$(HERE)
	PATH="$$PWD/$(VENV)/bin:$$PATH" mpirun -n $(RANKS) python -m mpidec.run --out run.h5 --force $(ARGS)
	$(VENV)/bin/python -m mpidec.plot run.h5 -o run.png

# What make test passes: one process with Open MPI beside it, then one job on ranks at a time (see CONTRIBUTING.md).  Each runs of the parameter sets of a
# test only as many as show each value once, and on ranks at most 2 to 4; on 8 ranks what depends on many of them (wide), on Open MPI what depends on the library.
test:
	$(MAKE) --no-print-directory -j2 environments
	$(MAKE) --no-print-directory -j2 test-one-process test-openmpi
	$(call on_ranks,$(MPICH),3,--cover --most 4)
	$(call on_ranks,$(MPICH),8,--cover --most 3 -m wide)
	@$(if $(TRAIN),,echo "TORCH=0: not tested without PyTorch: mpidec.nn, mpidec.optim, mpidec.train, mpidec.reproduce, problems.Neural")
test-one-process:
	$(MPICH)/bin/python -m pytest -q -n 2 --dist worksteal --cover $(ARGS)
test-openmpi:
	$(call on_ranks,$(OPENMPI),3,--cover --most 2 -m library) >$(OPENMPI)/test.log 2>&1 || { cat $(OPENMPI)/test.log; exit 1; }
	tail -n 2 $(OPENMPI)/test.log
environments: $(MPICH)/.test-$(HERE) $(OPENMPI)/.test-$(HERE)
# The name of the environment that make uses, for programs; MPI=openmpi: that of Open MPI.
environment:
	@echo $(VENV)
on_ranks = $(1)/bin/python tests/helpers/launch.py -n $(2) --timeout 2400 -m pytest -q -p no:cacheprovider $(3) $(ARGS)

# OpenBLAS's kernels of other processors, with which the bits of an agent depend on no other one, either.
AVX512 := $(if $(shell grep -m1 -o avx512vl /proc/cpuinfo 2>/dev/null),SkylakeX)

test-all: $(MPICH)/.all-$(HERE) $(OPENMPI)/.all-$(HERE)
	TORCH=$(TORCH) .ci/wheel
	for cpu in Haswell Prescott $(AVX512); do \
	    OPENBLAS_CORETYPE=$$cpu $(MPICH)/bin/python -m pytest -q tests/problems tests/driver/asynchronous $(ARGS) || exit 1; \
	done
	for mpi in $(MPICH) $(OPENMPI); do \
	    $$mpi/bin/python -m pytest --slow $(ARGS) || exit 1; \
	    for n in 2 3 4 8 16; do $(call on_ranks,$$mpi,$$n,--slow) || exit 1; done; \
	done

docs: $(MPICH)/.docs-$(HERE)
	$(MPICH)/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build

lint: $(MPICH)/.lint-$(HERE)
	$(MPICH)/bin/ruff check
	$(MPICH)/bin/ruff format --check
	$(MPICH)/bin/mypy

$(MPICH)/.run-$(HERE): $(MPICH_SOURCES)
	.ci/venv $(MPICH) plot,data,mpich
	touch $@

$(OPENMPI)/.run-$(HERE): $(OPENMPI_SOURCES)
	.ci/venv $(OPENMPI) plot,data,openmpi
	touch $@

$(MPICH)/.test-$(HERE): $(MPICH_SOURCES)
	.ci/venv $(MPICH) plot,data,test,docs,$(TRAIN)mpich
	touch $@ $(MPICH)/.run-$(HERE) $(MPICH)/.docs-$(HERE)

$(MPICH)/.all-$(HERE): $(MPICH_SOURCES)
	.ci/venv $(MPICH) plot,data,test,docs,$(TRAIN)$(TRAINERS)mpich
	touch $@ $(MPICH)/.test-$(HERE) $(MPICH)/.run-$(HERE) $(MPICH)/.docs-$(HERE)

$(OPENMPI)/.test-$(HERE): $(OPENMPI_SOURCES)
	.ci/venv $(OPENMPI) test,data,$(TRAIN)openmpi
	touch $@

$(OPENMPI)/.all-$(HERE): $(OPENMPI_SOURCES)
	.ci/venv $(OPENMPI) plot,data,test,$(TRAIN)$(TRAINERS)openmpi
	touch $@ $(OPENMPI)/.test-$(HERE) $(OPENMPI)/.run-$(HERE)

$(MPICH)/.docs-$(HERE): $(MPICH_SOURCES)
	.ci/venv $(MPICH) docs,plot,data,mpich
	touch $@ $(MPICH)/.run-$(HERE)

$(MPICH)/.lint-$(HERE): $(MPICH_SOURCES)
	.ci/venv $(MPICH) lint,plot,data,mpich
	touch $@ $(MPICH)/.run-$(HERE)

clean:
	rm -rf run.h5 run.png build dist docs/_build docs/tutorials docs/reference/solvers *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find mpidec tests -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	for made in $(MPICH) $(OPENMPI); do [ ! -e $$made/.path ] || rm -rf $$made; done
	find mpidec -name '*.so' -exec rm -f {} +
