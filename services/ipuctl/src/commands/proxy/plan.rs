//! `ipuctl plan` through a proxy: evaluates which partitions would fit side by side, also if others were
//! released.

use std::collections::BTreeSet;

use ipu_core::JobSpec;
use ipu_proxy_client::{CordonDocument, DryRunRequest, DryRunResponse, Planned, ProxyClient};

use super::{cordons_for, failure};
use crate::cli::{Global, Plan};
use crate::commands::plan::{Fit, FitResult, jobs};
use crate::display;
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
            let planned = dry_run(proxy, sizes, &ended).await?;
            let cordons = cordons(&planned, proxy).await;
            Ok(fit(&planned, &cordons))
        })
        .await;
    }
    let sizes = arguments.size.iter().map(|size| size.get()).collect();
    let planned = dry_run(proxy, sizes, &ended).await?;
    let cordons = cordons(&planned, proxy).await;
    output.result(&render(global.output, &planned, || table(&planned, &cordons))?);
    Ok(match fit(&planned, &cordons).verdict {
        FitResult::Never => Code::Impossible,
        FitResult::Waits => Code::NoCapacity,
        FitResult::Now | FitResult::Unknown => Code::Done,
    })
}

async fn dry_run(proxy: &ProxyClient, sizes: Vec<u32>, ended: &[String]) -> Result<DryRunResponse, Failure> {
    let mut request = DryRunRequest::new(sizes);
    request.if_these_ended = ended.to_vec();
    proxy.plan(&request).await.map_err(failure)
}

/// Returns the cordons, if a reason refers to them.
async fn cordons(response: &DryRunResponse, proxy: &ProxyClient) -> Vec<CordonDocument> {
    let reasons = response.planned.iter().flat_map(|planned| &planned.reasons);
    cordons_for(reasons.map(|reason| &reason.reason), proxy).await
}

/// Returns the verdict on all sizes together, with the reason of the first that does not fit.
fn fit(response: &DryRunResponse, cordons: &[CordonDocument]) -> Fit {
    let Some((instance, planned)) = response
        .planned
        .iter()
        .enumerate()
        .find(|(_, planned)| !planned.fits)
    else {
        let controllers = response
            .planned
            .iter()
            .filter_map(|planned| planned.controller.as_ref());
        let controllers: BTreeSet<String> = controllers.map(ToString::to_string).collect();
        let reason = format!("Controller: {}", Vec::from_iter(controllers).join(", "));
        return Fit::new(FitResult::Now, reason);
    };
    let never =
        !planned.reasons.is_empty() && planned.reasons.iter().all(|reason| never_fits(&reason.reason));
    let verdict = if never { FitResult::Never } else { FitResult::Waits };
    Fit::new(
        verdict,
        format!("instance {instance}: {}", reasons(planned, cordons)),
    )
}

/// Returns the reasons of the controllers; equal reasons are shown once.
fn reasons(planned: &Planned, cordons: &[CordonDocument]) -> String {
    if planned.reasons.is_empty() && !planned.fits {
        return "no controller answers".to_owned();
    }
    let texts: Vec<String> = planned
        .reasons
        .iter()
        .map(|reason| display::reason_with_cordons(&reason.reason, cordons))
        .collect();
    if let [first, rest @ ..] = texts.as_slice()
        && rest.iter().all(|text| text == first)
    {
        return first.clone();
    }
    let controllers = planned.reasons.iter().map(|reason| &reason.controller);
    let texts: Vec<String> = controllers
        .zip(texts)
        .map(|(controller, text)| format!("{controller}: {text}"))
        .collect();
    texts.join("; ")
}

fn table(response: &DryRunResponse, cordons: &[CordonDocument]) -> String {
    let mut table = Table::new(&["SIZE", "FITS", "CONTROLLER", "REASON"]);
    for planned in &response.planned {
        let controller = planned.controller.as_ref().map(ToString::to_string);
        table.row([
            planned.size.to_string(),
            if planned.fits { "yes" } else { "no" }.to_owned(),
            controller.unwrap_or_default(),
            reasons(planned, cordons),
        ]);
    }
    table.text()
}
