# The everyday commands of this repository; `just` alone lists them.

default:
    @just --list

# What the README promises: the main job, on this machine
race *ARGS:
    cargo run --release -- race {{ARGS}}

# All tests; those that need what this machine lacks say `waived: … reason`
test *ARGS:
    cargo test --workspace {{ARGS}}

# Formatting, lints and documentation, as strict as .ci/run
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

# Accept new expected outputs after looking at them: `git diff` shows what changed
accept *ARGS:
    INSTA_UPDATE=always cargo test --workspace {{ARGS}}

# On a machine with a GPU: correctness, then rates beside a plain copy, of FILE or of random bytes; 77 without one
gpu-tests *FILE:
    .ci/gpu-tests {{FILE}}

# Versions of the real libcufile for the tests that try them; where none can be had, those are waived
cufile:
    .ci/cufile

# The API documentation, in a browser
doc:
    cargo doc --workspace --no-deps --open

# A virtual server with PCIe switches, NVMe drives with peer memory and RoCE, on real kernel code
rig *ARGS="all":
    cargo build
    rig/run {{ARGS}}

# The Python wheel: built, tried in a clean venv, tested, its types checked
wheel:
    crates/python/check

# The network plugin for NCCL, under the name that NCCL looks for; for LD_LIBRARY_PATH
nccl-net:
    cargo build --release -p crowfly-nccl-net
    mkdir -p target/nccl
    cp target/release/libnccl_net_crowfly.so target/nccl/libnccl-net-crowfly.so

# Peers side by side on the same files; results are kept, dated, in bench/results
bench *ARGS:
    cargo build --release
    bench/storage {{ARGS}}

# One fuzz target for a while, from its seeds: `just fuzz checkpoint_header 300`
fuzz TARGET SECONDS="60":
    mkdir -p fuzz/corpus/{{TARGET}} fuzz/seeds/{{TARGET}}
    cargo +nightly fuzz run {{TARGET}} fuzz/corpus/{{TARGET}} fuzz/seeds/{{TARGET}} -- -max_total_time={{SECONDS}}

# The fabric's scheduler through many seeds of faults; nightly
simulate SEEDS="10000":
    CROWFLY_SIM_SEEDS={{SEEDS}} cargo test -p crowfly-mover --lib fabric::simulation

# Everything that a change must pass
ci:
    .ci/run
