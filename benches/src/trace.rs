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
pub enum Step {
    /// A partition of this size is placed where it is tightest.
    Place {
        /// How many IPUs.
        size: IpuCount,
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
/// Each size from 1 to 64, but no more than a quarter of the system, is as likely as another. Before a partition is
/// placed, others that are chosen at random are released until it fits and the system stays within its percentage. So
/// every placement of a trace succeeds.
#[derive(Clone, Debug)]
pub struct Trace {
    /// How many IPUs there are, in whole link domains.
    pub ipus: u32,
    /// What is placed at the start: first IPU and size.
    pub start: Vec<(u32, IpuCount)>,
    /// What happens then.
    pub steps: Vec<Step>,
    /// How many of the steps place something.
    pub placed: usize,
    /// How full it was on average, in percent.
    pub mean_fill: f64,
}

impl Trace {
    /// The trace of a system of `ipus` IPUs that is filled to `percent`.
    ///
    /// # Panics
    ///
    /// If `ipus` is no multiple of 64, or 0.
    #[must_use]
    pub fn new(ipus: u32, percent: u32) -> Self {
        assert!(
            ipus > 0 && ipus.is_multiple_of(64),
            "whole link domains are needed"
        );
        let mut random = Random::new(u64::from(ipus) << 32 | u64::from(percent));
        let mut index = FreeIndex::new((0..ipus / 64).map(|_| u64::MAX));
        let limit = (u64::from(ipus) * u64::from(percent) / 100) as u32;
        let mut live = Vec::new();
        let mut steps = Vec::new();
        // Long enough for nothing to be left of the order in which it was filled.
        let warm_up = ipus as usize * 4;
        while steps.len() < warm_up {
            churn(
                &mut random,
                &mut index,
                [ipus, limit],
                &mut live,
                &mut 0,
                &mut steps,
            );
        }
        let start: Vec<(u32, IpuCount)> = live.iter().map(|(first, size, _)| (*first, *size)).collect();
        let mut placed = start.len();
        for (number, partition) in live.iter_mut().enumerate() {
            partition.2 = number;
        }
        steps.clear();
        let mut used = 0.0;
        let mut rounds = 0.0;
        while steps.len() < STEPS {
            churn(
                &mut random,
                &mut index,
                [ipus, limit],
                &mut live,
                &mut placed,
                &mut steps,
            );
            used += f64::from(ipus - index.free());
            rounds += 1.0;
        }
        Self {
            ipus,
            placed: placed - start.len(),
            start,
            steps,
            mean_fill: used / rounds / f64::from(ipus) * 100.0,
        }
    }
}

/// Releases what is in the way of one more partition, and places it.
fn churn(
    random: &mut Random,
    index: &mut FreeIndex,
    [ipus, limit]: [u32; 2],
    live: &mut Vec<(u32, IpuCount, usize)>,
    number: &mut usize,
    steps: &mut Vec<Step>,
) {
    let orders = (ipus / 4).min(64).ilog2() + 1;
    let size = IpuCount::from_order(random.below(orders)).expect("orders of 0 to 6 are sizes");
    let (row, ipu) = loop {
        if ipus - index.free() + size.get() <= limit
            && let Some(found) = index.take_best(size)
        {
            break found;
        }
        let (first, size, number) = live.swap_remove(random.below(live.len() as u32) as usize);
        let given = index.give(first as usize / 64, (first % 64) as u8, size);
        assert!(given, "what lives is held");
        steps.push(Step::Release { first, size, number });
    };
    steps.push(Step::Place { size });
    live.push((row as u32 * 64 + u32::from(ipu), size, *number));
    *number += 1;
}
