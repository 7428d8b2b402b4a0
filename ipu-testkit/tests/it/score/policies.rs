//! Bad policies, and strategies for traces.

use std::cmp::Reverse;
use std::time::Duration;

use ipu_core::IpuCount;
use ipu_core::hardware::{Block, InventoryView, Topology};
use ipu_core::placement::{BestFit, FirstFit, PlacementPolicy, PlacementRequest};
use ipu_testkit::{Trace, TraceJob};
use proptest::prelude::*;

/// The policy of the guide: chooses the link domain with the most free IPUs.
#[derive(Debug, Default)]
pub(crate) struct Spread;

impl PlacementPolicy for Spread {
    fn name(&self) -> &str {
        "spread"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        view.blocks(request.size)
            .min_by_key(|block| Reverse(view.free_in(block.first().link_domain)))
    }
}

/// Best fit that declines while an odd number of IPUs, or of pairs of IPUs, is free.
#[derive(Debug, Default)]
pub(crate) struct SometimesDeclines;

impl PlacementPolicy for SometimesDeclines {
    fn name(&self) -> &str {
        "moody"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        let odd = request.size.get() > 1 && view.free() & 3 != 0;
        if odd { None } else { BestFit.choose(view, request) }
    }
}

/// Uses only the lower half of the hardware: in effect one job of each size at a time.
#[derive(Debug, Default)]
pub(crate) struct LowerHalfOnly;

impl PlacementPolicy for LowerHalfOnly {
    fn name(&self) -> &str {
        "wasteful"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        let half_is_held = view.free() * 2 < view.ipus() + 2 * request.size.get();
        if half_is_held && view.free() < view.ipus() {
            return None;
        }
        FirstFit.choose(view, request)
    }
}

/// Declines more than four IPUs.
#[derive(Debug, Default)]
pub(crate) struct SmallOnly;

impl PlacementPolicy for SmallOnly {
    fn name(&self) -> &str {
        "small-only"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        (request.size.get() <= 4).then(|| BestFit.choose(view, request))?
    }
}

/// Always returns the first block of the first link domain, free or not.
#[derive(Debug, Default)]
pub(crate) struct AlwaysFirst;

impl PlacementPolicy for AlwaysFirst {
    fn name(&self) -> &str {
        "stubborn"
    }

    fn choose(&self, _: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        Block::within(0, 0, request.size).ok()
    }
}

pub(crate) fn policies() -> Vec<Box<dyn PlacementPolicy>> {
    vec![
        Box::new(BestFit),
        Box::new(FirstFit),
        Box::new(Spread),
        Box::new(SometimesDeclines),
        Box::new(LowerHalfOnly),
        Box::new(SmallOnly),
        Box::new(AlwaysFirst),
    ]
}

pub(crate) fn count(ipus: u32) -> IpuCount {
    IpuCount::try_from(ipus).unwrap()
}

/// Creates a job of whole seconds.
pub(crate) fn job(submit: u64, runtime: u64, ipus: u32) -> TraceJob {
    TraceJob::new(
        Duration::from_secs(submit),
        Duration::from_secs(runtime),
        count(ipus),
    )
}

/// Returns up to `max` jobs with close arrivals, so that they queue: many at the same time, some of zero
/// length, of up to 2^`orders` IPUs.
pub(crate) fn trace(max: usize, orders: u32) -> impl Strategy<Value = Trace> {
    let job = (
        0_u64..4,
        0_u64..20,
        0..=orders,
        prop_oneof![4 => Just(0), 1 => -1..=1],
    );
    prop::collection::vec(job, 0..max).prop_map(|jobs| {
        let mut now = 0;
        Trace::of_jobs((1..).zip(jobs).map(|(number, (gap, runtime, order, priority))| {
            now += gap;
            job_of_order(now, runtime, order)
                .numbered(number)
                .with_priority(priority)
        }))
    })
}

fn job_of_order(submit: u64, runtime: u64, order: u32) -> TraceJob {
    job(submit, runtime, 1 << order)
}

/// Returns small hardware that does not hold every job.
pub(crate) fn topology() -> impl Strategy<Value = Topology> {
    prop_oneof![
        Just("pod4"),
        Just("1x2"),
        Just("2x1,1x2"),
        Just("pod16"),
        Just("1x3;1x1"),
    ]
    .prop_map(|text| text.parse().unwrap())
}
