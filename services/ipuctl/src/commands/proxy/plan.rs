//! `ipuctl plan` through a proxy: what would fit, side by side, also if others had ended.

use std::collections::BTreeSet;

use ipu_core::JobSpec;
use ipu_proxy_client::{DryRunRequest, DryRunResponse, Planned, ProxyClient};

use super::failure;
use crate::cli::{Global, Plan};
use crate::commands::plan::{Fit, FitResult, jobs};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::run::never_fits;
use crate::table::{Table, render};

/// Plans sizes, or every job of a file.
pub(super) async fn run(
    arguments: Plan,
    proxy: &ProxyClient,
    global: &Global,
    output: &Output,
) -> Result<Code, Failure> {
    let ended: Vec<String> = arguments.if_ended.iter().map(ToString::to_string).collect();
    if arguments.size.is_empty() {
        return jobs(arguments, global, output, async |job: &JobSpec| {
            let count = usize::try_from(job.instances()).unwrap_or(usize::MAX);
            let sizes = std::iter::repeat_n(job.partition().size.get(), count).collect();
            Ok(fit(&ask(proxy, sizes, &ended).await?))
        })
        .await;
    }
    let sizes = arguments.size.iter().map(|size| size.get()).collect();
    let answer = ask(proxy, sizes, &ended).await?;
    output.result(&render(global.output, &answer, || table(&answer))?);
    Ok(match fit(&answer).verdict {
        FitResult::Never => Code::Impossible,
        FitResult::Waits => Code::NoRoom,
        FitResult::Now | FitResult::Unknown => Code::Done,
    })
}

async fn ask(proxy: &ProxyClient, sizes: Vec<u32>, ended: &[String]) -> Result<DryRunResponse, Failure> {
    let mut question = DryRunRequest::new(sizes);
    question.if_these_ended = ended.to_vec();
    proxy.plan(&question).await.map_err(failure)
}

/// Whether all of it fits, and why not.
fn fit(answer: &DryRunResponse) -> Fit {
    let Some((instance, planned)) = answer
        .planned
        .iter()
        .enumerate()
        .find(|(_, planned)| !planned.fits)
    else {
        let at = answer
            .planned
            .iter()
            .filter_map(|planned| planned.controller.as_ref());
        let at: BTreeSet<String> = at.map(ToString::to_string).collect();
        return Fit {
            verdict: FitResult::Now,
            why: format!("at {}", Vec::from_iter(at).join(", ")),
        };
    };
    let never = !planned.reasons.is_empty() && planned.reasons.iter().all(|why| never_fits(&why.reason));
    Fit {
        verdict: if never { FitResult::Never } else { FitResult::Waits },
        why: format!("instance {instance}: {}", why(planned)),
    }
}

fn why(planned: &Planned) -> String {
    if planned.reasons.is_empty() && !planned.fits {
        return "no controller answers".to_owned();
    }
    let reasons = planned.reasons.iter();
    let texts: Vec<String> = reasons
        .map(|why| format!("{}: {}", why.controller, why.reason.message))
        .collect();
    texts.join("; ")
}

fn table(answer: &DryRunResponse) -> String {
    let mut table = Table::new(&["SIZE", "FITS", "CONTROLLER", "WHY NOT"]);
    for planned in &answer.planned {
        let controller = planned.controller.as_ref().map(ToString::to_string);
        table.row([
            planned.size.to_string(),
            if planned.fits { "yes" } else { "no" }.to_owned(),
            controller.unwrap_or_default(),
            why(planned),
        ]);
    }
    table.text()
}
