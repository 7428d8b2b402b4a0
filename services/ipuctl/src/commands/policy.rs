//! `ipuctl policy`: tests and scores a placement policy in a WebAssembly module.

use std::path::Path;

use ipu_allocator::WasmPolicy;
use ipu_core::hardware::Inventory;
use ipu_core::placement::{BestFit, FirstFit, PlacementPolicy};
use ipu_testkit::{PolicyCheck, Score, ScoreOptions, SyntheticOptions, Trace, replay_trace};

use crate::cli::{Format, Policy};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table;

/// Seed of the jobs: every score is of the same ones.
const SEED: u64 = 1;

/// Prints the coverage of the check, or the scores.
pub(crate) fn run(command: &Policy, format: Format, output: &Output) -> Result<Code, Failure> {
    match command {
        Policy::Check { file, may_decline } => {
            let policy = load(file)?;
            let check = PolicyCheck::new();
            let check = if *may_decline {
                check.allow_declining()
            } else {
                check
            };
            match check.run(|| policy.clone()) {
                Ok(report) => output.result(&format!("{report}\n")),
                Err(failure) => return Err(Failure::new(Code::Data, failure.to_string())),
            }
        }
        Policy::Score { file, topology, jobs } => {
            let policy = load(file)?;
            let trace = Trace::synthetic(&SyntheticOptions::mixed(SEED, *jobs, topology.ipus()));
            let inventory = Inventory::new(topology);
            let policies: [&dyn PlacementPolicy; 3] = [&policy, &FirstFit, &BestFit];
            let scores = policies.map(|policy| {
                replay_trace(policy, &trace, &inventory, &ScoreOptions::default())
                    .score()
                    .clone()
            });
            let named: Vec<_> = scores.iter().map(|score| (&*score.policy, score)).collect();
            let text = || Score::compare(&named).to_string();
            output.result(&table::render(format, &scores, text)?);
        }
    }
    Ok(Code::Done)
}

fn load(file: &Path) -> Result<WasmPolicy, Failure> {
    WasmPolicy::load(file)
        .map_err(|error| Failure::because(Code::Data, format!("load the policy {}", file.display()), error))
}
