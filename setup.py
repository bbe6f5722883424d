"""Build of the compiled kernels; all other settings are in pyproject.toml.

The kernels are libraries that ctypes loads, one for each CPU capability that torch distinguishes.
Wheels contain all of them, and geonet chooses when it runs. They need GCC's vector extensions, so
GCC or Clang. With MSVC, or if the compiler fails, none are built, and torch does
the same work more slowly.

OpenMP is enabled for compilation only. The functions that it calls are those of the library that
torch has loaded: a second OpenMP library in one process would double the threads.
"""

import os
import platform
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = "src/geonet/numerics/kernels"
NAMES = ("bounds", "cosine_paths", "multigrid", "newton_residual", "unet")
FAST_MATH = ("-ffast-math", "-fno-finite-math-only", "-Wno-psabi")
AVX2 = ("-mavx2", "-mfma")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")


class BuildKernels(build_ext):
    """Build with flags that all compilers take, or nothing with compilers that lack extensions."""

    def build_extensions(self) -> None:
        self.parallel = self.parallel or os.cpu_count()  # each extension takes a minute
        if self.compiler.compiler_type == "msvc":
            print("The kernels need GCC or Clang; geonet will use torch instead.", file=sys.stderr)
            self.extensions = []
        # Apple's clang takes the flag for compilation without linking in this form only.
        openmp = ["-Xclang", "-fopenmp"] if sys.platform == "darwin" else ["-fopenmp"]
        for extension in self.extensions:
            extension.extra_compile_args += ["-O3", "-g0", *openmp]
        super().build_extensions()

    def get_outputs(self) -> list[str]:
        """Return the files that were built; optional ones may be missing."""
        return super().get_outputs() if self.extensions else []


def make_extension(name: str, sources: tuple[str, ...], flags: tuple[str, ...]) -> Extension:
    """Return an optional kernel library."""
    return Extension(
        f"geonet.numerics.kernels.{name}",
        [f"{FOLDER}/{source}.c" for source in sources],
        depends=[f"{FOLDER}/quadratic.h"],
        extra_compile_args=list(flags),
        optional=True,
    )


def list_extensions() -> list[Extension]:
    """Return the builds for this processor family."""
    builds = {"default": ()}
    if platform.machine().lower() in ("x86_64", "amd64"):
        builds |= {"avx2": AVX2, "avx512": AVX512}
    kernels = [
        make_extension(f"_kernels_{name}", NAMES, (*FAST_MATH, *flags))
        for name, flags in builds.items()
    ]
    # The c-transform of `back-and-forth` and of the bounds: values may be infinite.
    return [*kernels, make_extension("_c_transform", ("c_transform",), ())]


setup(ext_modules=list_extensions(), cmdclass={"build_ext": BuildKernels})
