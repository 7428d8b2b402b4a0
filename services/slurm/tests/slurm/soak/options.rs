//! The number of jobs of a soak test, and its seed.

use ipu_testkit::Random;

/// Environment variable with the number of jobs of each test.
const JOBS: &str = "IPU_SLURM_SOAK_JOBS";
/// Environment variable with the seed.
const SEED: &str = "IPU_SLURM_SOAK_SEED";
/// Seed of the gate.
const DEFAULT_SEED: u64 = 26;

/// Options of a soak test. If the test fails, they are printed.
#[derive(Clone, Debug)]
pub(crate) struct SoakOptions {
    pub(crate) jobs: usize,
    pub(crate) seed: u64,
}

impl SoakOptions {
    /// Reads the options, with `jobs` as the number in the gate.
    pub(crate) fn from_environment(jobs: usize) -> Self {
        let number =
            |name: &str| {
                let text = std::env::var(name).ok()?;
                let number = text.parse::<u64>();
                Some(number.unwrap_or_else(|_| {
                    panic!("{name} = {text:?}: must be a number; unset it or write 1000")
                }))
            };
        Self {
            jobs: number(JOBS).map_or(jobs, |jobs| usize::try_from(jobs).unwrap()),
            seed: number(SEED).unwrap_or(DEFAULT_SEED),
        }
    }

    /// Returns the random numbers of one part of the test.
    pub(crate) const fn random(&self, part: u64) -> Random {
        Random::new(self.seed.wrapping_mul(1000).wrapping_add(part))
    }
}

impl Drop for SoakOptions {
    #[expect(clippy::print_stderr, reason = "a failed test prints how to repeat it")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with {JOBS}={} {SEED}={}", self.jobs, self.seed);
        }
    }
}
