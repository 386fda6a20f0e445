"""Recipe for Spack; a release fills in the version and the checksum."""
# ruff: noqa: F403, F405

from spack.package import *


class PyMpidec(PythonPackage):
    """MPI-first decentralized optimization: agents that talk to their neighbours only."""

    pypi = "mpidec/mpidec-0.0.0.tar.gz"
    license("Apache-2.0")

    version("0.0.0", sha256="0" * 64)

    variant("plot", default=False, description="figures")
    variant("torch", default=False, description="training of PyTorch models")
    variant("data", default=False, description="data sets of scikit-learn")

    depends_on("c", type="build")
    depends_on("python@3.10:", type=("build", "link", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-mpi4py@4.1:", type=("build", "run"))  # the cluster's MPI comes with it
    depends_on("py-numpy@2.0:", type=("build", "run"))
    depends_on("py-scipy@1.13.1:", type=("build", "run"))
    depends_on("py-h5py@3.11: ~mpi", type=("build", "run"))
    depends_on("py-networkx@3.2:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-threadpoolctl@3.2:", type=("build", "run"))
    depends_on("py-tomli@2.0:", type=("build", "run"), when="^python@:3.10")
    depends_on("py-matplotlib@3.9:", type="run", when="+plot")
    depends_on("py-torch@2.3:", type="run", when="+torch")
    depends_on("py-scikit-learn@1.5:", type="run", when="+data")

    # optional = true in pyproject.toml lets an install without compiled modules pass: refused here
    @run_after("install")
    def compiled_modules(self):
        names = ["comm.kernels._kernel", "comm.rma._records", "comm.timeline._events"]
        if self.spec.satisfies("platform=linux"):
            names.append("comm.runtime._shared")
        python("-c", "import " + ", ".join("mpidec." + name for name in names))
