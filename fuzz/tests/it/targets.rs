//! One test per target: its corpus first, then mutations of it, then random bytes.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use ipu_fuzz::TARGETS;

use crate::mutation::{Mutation, corpus, mutate};

/// Maximum total bytes of the committed corpora, which every clone downloads.
const MAX_CORPUS_BYTES: u64 = 200 * 1024;

/// Returns the number of inputs of each kind: enough for about a second in a debug build.
/// `IPU_FUZZ_ITERATIONS` replaces it.
fn iterations(default: usize) -> usize {
    match std::env::var("IPU_FUZZ_ITERATIONS") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("IPU_FUZZ_ITERATIONS={text:?}: must be a number")),
        Err(_) => default,
    }
}

/// Runs a target on its corpus and reports the failing input.
fn replay(name: &str, run: fn(&[u8])) {
    for (path, bytes) in corpus(name) {
        let passed = catch_unwind(AssertUnwindSafe(|| run(&bytes))).is_ok();
        assert!(passed, "the failing input is {}", path.display());
    }
}

macro_rules! targets {
    ($($name:ident: $default:expr),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                let name = stringify!($name);
                replay(name, ipu_fuzz::$name);
                let seeds = corpus(name);
                let count = iterations($default);
                let unlimited = std::time::Duration::MAX;
                bolero::check!(name = concat!(stringify!($name), " mutated"))
                    .with_type::<Mutation>()
                    .with_iterations(count)
                    .with_test_time(unlimited)
                    .for_each(|mutation| ipu_fuzz::$name(&mutate(&seeds, mutation)));
                bolero::check!(name = concat!(stringify!($name), " random"))
                    .with_iterations(count)
                    .with_test_time(unlimited)
                    .for_each(|bytes: &[u8]| ipu_fuzz::$name(bytes));
            }
        )*

        #[test]
        fn every_target_is_tested() {
            let tested = BTreeSet::from([$(stringify!($name)),*]);
            let names: BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(tested, names);
        }
    };
}

targets! {
    agents: 1_000,
    allocator: 2_000,
    controllers: 2_000,
    decide: 1_000,
    exit_codes: 1_000,
    gres: 3_000,
    grpc_reply: 1_000,
    manifest: 500,
    names: 1_000,
    sim_grpc: 100,
    sim_rest: 100,
    slurm_conf: 1_000,
    slurm_hooks: 1_000,
    slurm_output: 1_000,
    swf: 500,
    topology: 200,
}

#[test]
fn the_corpus_is_small_and_every_directory_is_a_target() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let name = entry.unwrap().file_name();
        let name = name.to_str().unwrap();
        assert!(
            TARGETS.iter().any(|target| target.name == name),
            "{name} is not a target"
        );
        bytes += corpus(name)
            .iter()
            .map(|(_, input)| input.len() as u64)
            .sum::<u64>();
    }
    assert!(bytes <= MAX_CORPUS_BYTES, "{bytes} bytes");
}
