//! `kubectl ipu scale`: sets the number of instances of a job.

use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::cli::Format;
use crate::context::Context;
use crate::exit_code::{Code, Failure, api_failure};
use crate::output::{self, render};

/// Scales the job by its scale subresource, as `kubectl scale` does.
pub(crate) async fn scale(
    job: &str,
    replicas: u32,
    context: &Context,
    format: Format,
) -> Result<Code, Failure> {
    let patch = json!({"spec": {"replicas": replicas}});
    let scaled = context
        .jobs()
        .patch_scale(job, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map_err(|error| api_failure(format!("scale IPUJob {}/{job}", context.namespace), error))?;
    output::result(&render(format, &scaled, || {
        format!("ipujob/{job} scaled to {replicas}\n")
    })?)?;
    Ok(Code::Done)
}
