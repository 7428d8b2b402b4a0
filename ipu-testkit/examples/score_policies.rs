//! Compares a custom policy with the built-in ones, on a synthetic trace or on a file in the Standard
//! Workload Format: `cargo run --release -p ipu-testkit --example score_policies [FILE.swf
//! [PROCESSORS_PER_IPU [LOAD]]]`. The load is a share of 256 IPUs, 0.7 by default.

use core::cmp::Reverse;
use std::error::Error;
use std::io::Write as _;

use ipu_core::hardware::{Block, InventoryView, Topology};
use ipu_core::placement::{BestFit, FirstFit, PlacementPolicy, PlacementRequest};
use ipu_testkit::{Score, SwfOptions, SyntheticOptions, Trace, score_policy};

/// Chooses a block in the link domain with the most free IPUs, the lowest of the lowest such link domain.
#[derive(Default)]
struct Spread;

impl PlacementPolicy for Spread {
    fn name(&self) -> &str {
        "spread"
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        view.blocks(request.size)
            .min_by_key(|block| Reverse(view.free_in(block.first().link_domain)))
    }
}

/// Returns the scores of the three policies on `topology` side by side.
pub(crate) fn compare(trace: &Trace, topology: &Topology) -> String {
    let spread = score_policy::<Spread>(trace, topology);
    let first = score_policy::<FirstFit>(trace, topology);
    let best = score_policy::<BestFit>(trace, topology);
    Score::compare(&[("spread", &spread), ("first-fit", &first), ("best-fit", &best)]).to_string()
}

/// Returns 2,000 jobs of minutes to hours, of 1 to 128 IPUs, with a load of about 70 % on 256 IPUs.
pub(crate) fn synthetic_trace() -> Trace {
    Trace::synthetic(&SyntheticOptions::mixed(1, 2_000, 256))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let trace = match arguments.next() {
        None => synthetic_trace(),
        Some(file) => {
            let mut options = SwfOptions::default();
            if let Some(processors) = arguments.next() {
                options.processors_per_ipu = processors.parse()?;
            }
            let load = arguments.next().map_or(Ok(0.7), |load| load.parse())?;
            Trace::parse_swf(std::fs::read(file)?, &options)?.at_load(load, 256)
        }
    };
    std::io::stdout().write_all(compare(&trace, &Topology::pod256()).as_bytes())?;
    Ok(())
}
