//! Allocation traces, identical for all compared implementations.

use ipu_core::IpuCount;
use ipu_core::hardware::FreeIndex;
use ipu_testkit::Random;

/// Measured sizes in IPUs, of one or several IPU-PODs.
pub const IPUS: [u32; 3] = [64, 1_024, 65_536];

/// Measured fill levels, in percent.
pub const FILLS: [u32; 2] = [50, 90];

/// Steps per trace: too many for the branch predictor to memorize.
const STEPS: usize = 20_000;

/// A step of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceStep {
    /// A best-fit placement of a partition.
    Place {
        /// Size in IPUs.
        size: IpuCount,
        /// First IPU, for benchmarks with a predetermined block: 64 per link domain.
        first: u32,
    },
    /// A release of a partition.
    Release {
        /// First IPU: 64 per link domain.
        first: u32,
        /// Size in IPUs.
        size: IpuCount,
        /// Number of the partition in placement order, initial partitions first.
        number: usize,
    },
}

/// A system filled to a percentage, and the steps after that.
///
/// Every size from 1 to 64 is equally likely, up to the size of a link domain and a quarter of the system.
/// Before a placement, random partitions are released until the new one fits and the system stays within
/// its percentage. So every placement of a trace succeeds.
#[derive(Clone, Debug)]
pub struct Trace {
    /// IPUs of each link domain, as a bit mask.
    pub rows: Vec<u64>,
    /// Initial partitions: first IPU and size.
    pub start: Vec<(u32, IpuCount)>,
    /// Steps after the initial state.
    pub steps: Vec<TraceStep>,
    /// Number of placements in the steps.
    pub placed: usize,
}

impl Trace {
    /// Creates the trace of a system of `ipus` IPUs in whole link domains, filled to `percent`.
    ///
    /// # Panics
    ///
    /// If `ipus` is less than a link domain.
    #[must_use]
    pub fn new(ipus: u32, percent: u32) -> Self {
        Self::of_rows(vec![u64::MAX; ipus as usize / 64], percent)
    }

    /// Creates the trace of a system whose link domains have these IPUs, filled to `percent`.
    ///
    /// # Panics
    ///
    /// If the system is too small for any partition.
    #[must_use]
    pub fn of_rows(rows: Vec<u64>, percent: u32) -> Self {
        let ipus: u32 = rows.iter().map(|row| row.count_ones()).sum();
        let index = FreeIndex::new(rows.iter().copied());
        let largest = index.largest().map_or(0, IpuCount::get);
        let mut churn = Churn {
            random: Random::new(u64::from(ipus) << 32 | u64::from(percent)),
            index,
            sizes: (ipus / 4).min(largest).ilog2() + 1,
            min_free: ipus - (u64::from(ipus) * u64::from(percent) / 100) as u32,
            partitions: Vec::new(),
            placed: 0,
            steps: Vec::new(),
        };
        // Long enough to remove every trace of the initial order.
        while churn.steps.len() < ipus as usize * 4 {
            churn.place_one();
        }
        churn.steps.clear();
        for (number, partition) in churn.partitions.iter_mut().enumerate() {
            partition.2 = number;
        }
        let start: Vec<(u32, IpuCount)> = churn
            .partitions
            .iter()
            .map(|(first, size, _)| (*first, *size))
            .collect();
        churn.placed = start.len();
        while churn.steps.len() < STEPS {
            churn.place_one();
        }
        Self {
            rows,
            placed: churn.placed - start.len(),
            start,
            steps: churn.steps,
        }
    }
}

/// A system with continuous placements and releases.
struct Churn {
    random: Random,
    index: FreeIndex,
    /// Number of sizes, starting at 1.
    sizes: u32,
    /// Minimum number of free IPUs.
    min_free: u32,
    /// First IPU, size and number of each partition.
    partitions: Vec<(u32, IpuCount, usize)>,
    placed: usize,
    steps: Vec<TraceStep>,
}

impl Churn {
    /// Releases partitions until one more fits, and places it.
    fn place_one(&mut self) {
        let size = IpuCount::from_order(self.random.below(self.sizes)).expect("orders of 0 to 6 are sizes");
        let first = loop {
            if self.index.free() >= self.min_free + size.get()
                && let Some((row, ipu)) = self.index.take_best(size)
            {
                break row as u32 * 64 + u32::from(ipu);
            }
            self.release();
        };
        self.steps.push(TraceStep::Place { size, first });
        self.partitions.push((first, size, self.placed));
        self.placed += 1;
    }

    fn release(&mut self) {
        let at = self.random.below(self.partitions.len() as u32) as usize;
        let (first, size, number) = self.partitions.swap_remove(at);
        let released = self.index.release(first as usize / 64, (first % 64) as u8, size);
        assert!(released, "a placed partition is held");
        self.steps.push(TraceStep::Release { first, size, number });
    }
}
