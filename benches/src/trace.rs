//! Partitions that come and go, the same for everything that is compared.

use ipu_core::{FreeIndex, IpuCount};
use ipu_testkit::Random;

/// The sizes of Pods, or of several, that are measured.
pub const IPUS: [u32; 3] = [64, 1_024, 65_536];

/// How full they are, in percent.
pub const FILLS: [u32; 2] = [50, 90];

/// How many steps a trace has: more than a processor learns by heart.
const STEPS: usize = 20_000;

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceStep {
    /// A partition of this size is placed where it is tightest.
    Place {
        /// How many IPUs.
        size: IpuCount,
        /// Its first IPU, where that is known in advance: 64 to a link domain.
        first: u32,
    },
    /// A partition is given back.
    Release {
        /// Its first IPU: 64 to a link domain.
        first: u32,
        /// How many IPUs.
        size: IpuCount,
        /// Which it is, in the order of placing, those of the start first.
        number: usize,
    },
}

/// A system that is filled to a percentage, and what happens to it then.
///
/// Each size from 1 to 64, but no more than fits into a link domain and than a quarter of the system, is as likely as another. Before a partition is
/// placed, others that are chosen at random are released until it fits and the system stays within its percentage. So
/// every placement of a trace succeeds.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The IPUs of each link domain.
    pub rows: Vec<u64>,
    /// What is placed at the start: first IPU and size.
    pub start: Vec<(u32, IpuCount)>,
    /// What happens then.
    pub steps: Vec<TraceStep>,
    /// How many of the steps place something.
    pub placed: usize,
    /// How full it was on average, in percent.
    pub mean_fill: f64,
}

impl Trace {
    /// The trace of a system of `ipus` IPUs in whole link domains that is filled to `percent`.
    ///
    /// # Panics
    ///
    /// If `ipus` is less than a link domain.
    #[must_use]
    pub fn new(ipus: u32, percent: u32) -> Self {
        Self::of_rows(vec![u64::MAX; ipus as usize / 64], percent)
    }

    /// The trace of a system whose link domains have these IPUs, filled to `percent`.
    ///
    /// # Panics
    ///
    /// If it is too small for anything to fit.
    #[must_use]
    pub fn of_rows(rows: Vec<u64>, percent: u32) -> Self {
        let ipus: u32 = rows.iter().map(|row| row.count_ones()).sum();
        let index = FreeIndex::new(rows.iter().copied());
        let largest = index.largest().map_or(0, IpuCount::get);
        let mut churn = Churn {
            random: Random::new(u64::from(ipus) << 32 | u64::from(percent)),
            index,
            sizes: (ipus / 4).min(largest).ilog2() + 1,
            least_free: ipus - (u64::from(ipus) * u64::from(percent) / 100) as u32,
            live: Vec::new(),
            placed: 0,
            steps: Vec::new(),
        };
        // Long enough for nothing to be left of the order in which it was filled.
        while churn.steps.len() < ipus as usize * 4 {
            churn.round();
        }
        churn.steps.clear();
        for (number, partition) in churn.live.iter_mut().enumerate() {
            partition.2 = number;
        }
        let start: Vec<(u32, IpuCount)> = churn
            .live
            .iter()
            .map(|(first, size, _)| (*first, *size))
            .collect();
        churn.placed = start.len();
        let (mut used, mut rounds) = (0.0, 0.0);
        while churn.steps.len() < STEPS {
            churn.round();
            used += f64::from(ipus - churn.index.free());
            rounds += 1.0;
        }
        Self {
            rows,
            placed: churn.placed - start.len(),
            start,
            steps: churn.steps,
            mean_fill: used / rounds / f64::from(ipus) * 100.0,
        }
    }
}

/// A system in which partitions come and go.
struct Churn {
    random: Random,
    index: FreeIndex,
    /// How many sizes there are, from 1 on.
    sizes: u32,
    /// How many IPUs stay free.
    least_free: u32,
    /// First IPU, size and number of each partition.
    live: Vec<(u32, IpuCount, usize)>,
    placed: usize,
    steps: Vec<TraceStep>,
}

impl Churn {
    /// Releases what is in the way of one more partition, and places it.
    fn round(&mut self) {
        let size = IpuCount::from_order(self.random.below(self.sizes)).expect("orders of 0 to 6 are sizes");
        let first = loop {
            if self.index.free() >= self.least_free + size.get()
                && let Some((row, ipu)) = self.index.take_best(size)
            {
                break row as u32 * 64 + u32::from(ipu);
            }
            self.release();
        };
        self.steps.push(TraceStep::Place { size, first });
        self.live.push((first, size, self.placed));
        self.placed += 1;
    }

    fn release(&mut self) {
        let at = self.random.below(self.live.len() as u32) as usize;
        let (first, size, number) = self.live.swap_remove(at);
        let given = self.index.release(first as usize / 64, (first % 64) as u8, size);
        assert!(given, "what lives is held");
        self.steps.push(TraceStep::Release { first, size, number });
    }
}
