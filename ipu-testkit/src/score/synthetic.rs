//! Synthetic traces: Poisson arrivals, approximately log-normal run times, a mix of sizes, all from one seed.

use std::time::Duration;

use ipu_core::IpuCount;

use super::distributions::Distributions;
use super::trace::{Trace, TraceJob};

/// Class of jobs in a synthetic trace.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct JobClass {
    /// Share of the jobs, relative to the weights of the other classes.
    pub weight: u32,
    /// Number of IPUs of each job.
    pub size: IpuCount,
    /// Median run time.
    pub median_runtime: Duration,
    /// Spread of run times: about two thirds lie within this factor below and above the median. At least 1,
    /// which makes all equal.
    pub factor: f64,
}

impl JobClass {
    /// Creates a class of jobs.
    #[must_use]
    pub const fn new(weight: u32, size: IpuCount, median_runtime: Duration, factor: f64) -> Self {
        Self {
            weight,
            size,
            median_runtime,
            factor,
        }
    }
}

/// Options of a synthetic trace.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SyntheticOptions {
    /// Seed: the same one produces the same trace on every machine.
    pub seed: u64,
    /// Number of jobs.
    pub jobs: usize,
    /// Number of IPUs that `load` refers to.
    pub ipus: u32,
    /// Offered load: requested IPU time divided by available IPU time; 0.7 by default. With mixed sizes the
    /// queue grows without bound well below 1, because no policy keeps all IPUs busy.
    pub load: f64,
    /// Classes of jobs.
    pub classes: Vec<JobClass>,
}

impl SyntheticOptions {
    /// Creates options for `jobs` jobs of these classes, with a load of 0.7 on `ipus` IPUs.
    #[must_use]
    pub const fn new(seed: u64, jobs: usize, ipus: u32, classes: Vec<JobClass>) -> Self {
        Self {
            seed,
            jobs,
            ipus,
            load: 0.7,
            classes,
        }
    }

    /// Creates options for many small jobs of minutes: 1 to 8 IPUs.
    #[must_use]
    pub fn inference(seed: u64, jobs: usize, ipus: u32) -> Self {
        let minutes = [(0, 40, 3), (1, 30, 5), (2, 25, 8), (3, 5, 10)];
        Self::new(seed, jobs, ipus, classes(ipus, &minutes, 3.0))
    }

    /// Creates options for few large jobs of hours: 16 to 256 IPUs.
    #[must_use]
    pub fn training(seed: u64, jobs: usize, ipus: u32) -> Self {
        let minutes = [
            (4, 40, 120),
            (5, 25, 180),
            (6, 20, 240),
            (7, 10, 360),
            (8, 5, 480),
        ];
        Self::new(seed, jobs, ipus, classes(ipus, &minutes, 2.5))
    }

    /// Creates options for both on the same hardware: small jobs of minutes to hours between large ones of
    /// hours.
    #[must_use]
    pub fn mixed(seed: u64, jobs: usize, ipus: u32) -> Self {
        let minutes = [
            (0, 30, 10),
            (1, 20, 15),
            (2, 20, 30),
            (3, 10, 45),
            (4, 12, 60),
            (5, 4, 90),
            (6, 3, 120),
            (7, 1, 180),
        ];
        Self::new(seed, jobs, ipus, classes(ipus, &minutes, 3.0))
    }
}

impl Trace {
    /// Generates a trace. Arrivals are a Poisson process whose mean matches the load. A run time is the
    /// median of its class times a factor whose logarithm is approximately normal, and at least one second.
    /// Only sums, products and comparisons are used, so that every machine generates the same trace from a
    /// seed.
    ///
    /// ```
    /// use ipu_testkit::{SyntheticOptions, Trace};
    ///
    /// let options = SyntheticOptions::mixed(7, 1_000, 256);
    /// let trace = Trace::synthetic(&options);
    /// assert_eq!(trace.jobs().len(), 1_000);
    /// assert_eq!(trace, Trace::synthetic(&options));
    /// assert!((0.5..0.9).contains(&trace.load(256).expect("the jobs arrive one after the other")));
    /// ```
    ///
    /// # Panics
    ///
    /// If no class has a weight above 0, the number of IPUs is 0, or the load is not a positive number.
    #[must_use]
    pub fn synthetic(options: &SyntheticOptions) -> Self {
        let weights: u64 = options.classes.iter().map(|class| u64::from(class.weight)).sum();
        assert!(
            weights > 0,
            "a synthetic trace needs a job class with a weight above 0"
        );
        assert!(options.ipus > 0, "a synthetic trace needs at least 1 IPU");
        assert!(
            options.load.is_finite() && options.load > 0.0,
            "the load of a synthetic trace must be above 0, not {}",
            options.load
        );
        let mut dice = Distributions::new(options.seed);
        let mut jobs: Vec<TraceJob> = (1..=options.jobs as u64)
            .map(|number| {
                let class = pick(&options.classes, dice.below(weights));
                let runtime = class.median_runtime.as_secs_f64() * dice.around_one(class.factor);
                // `as` saturates at the largest number.
                let runtime = Duration::from_millis(((runtime * 1000.0).round() as u64).max(1000));
                TraceJob::new(Duration::ZERO, runtime, class.size).numbered(number)
            })
            .collect();
        let work: u128 = jobs.iter().map(TraceJob::ipu_millis).sum();
        let gap = work as f64 / (f64::from(options.ipus) * options.load * options.jobs.max(1) as f64);
        let mut now = 0.0;
        for job in &mut jobs {
            job.submit = Duration::from_millis(now as u64);
            now += gap * dice.exponential();
        }
        Self::of_jobs(jobs)
    }
}

/// Returns classes from lists of order, weight and minutes, without those that `ipus` IPUs cannot hold; at
/// least the smallest.
fn classes(ipus: u32, minutes: &[(u32, u32, u64)], factor: f64) -> Vec<JobClass> {
    let class = |(order, weight, minutes): &(u32, u32, u64)| {
        let size = IpuCount::from_order(*order).unwrap_or(IpuCount::MAX);
        JobClass::new(*weight, size, Duration::from_secs(60 * *minutes), factor)
    };
    let smallest = minutes.first().map(class);
    let fitting: Vec<JobClass> = minutes
        .iter()
        .map(class)
        .filter(|class| class.size.get() <= ipus)
        .collect();
    if fitting.is_empty() {
        smallest.into_iter().collect()
    } else {
        fitting
    }
}

/// Returns the class at a position in the sum of all weights.
fn pick(classes: &[JobClass], mut at: u64) -> &JobClass {
    for class in classes {
        match at.checked_sub(u64::from(class.weight)) {
            Some(rest) => at = rest,
            None => return class,
        }
    }
    unreachable!("the position is below the sum of the weights")
}
