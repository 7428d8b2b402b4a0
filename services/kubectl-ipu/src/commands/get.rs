//! `kubectl ipu get`: lists IPUJobs, or shows one.

use std::fmt::Debug;

use ipu_k8s::crd::IpuJobStatus;
use ipu_proxy_client::cli::{Table, time};
use ipu_proxy_client::now;
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::Format;
use crate::context::Context;
use crate::exit_code::{Code, Failure, api_failure};
use crate::output::{self, List, render};

/// Maximum length of a message in the table. `why` shows the whole text.
const MAX_MESSAGE: usize = 80;

/// Returns the status of a job; the default one before the operator has written any.
pub(super) fn status_of(job: &DynamicObject) -> IpuJobStatus {
    let status = job.data.get("status").cloned().unwrap_or_default();
    serde_json::from_value(status).unwrap_or_default()
}

/// Returns the phase as the column STATUS of `kubectl get` has it.
pub(super) fn phase_of(status: &IpuJobStatus) -> String {
    status.launcher_status.clone().unwrap_or_else(|| "Pending".into())
}

/// Prints one job or all jobs.
pub(crate) async fn get(
    job: Option<&str>,
    all_namespaces: bool,
    context: &Context,
    format: Format,
) -> Result<Code, Failure> {
    if let Some(name) = job {
        let job = context.job(name).await?;
        let text = render(format, &job, || table(std::slice::from_ref(&job), false))?;
        output::result(&text)?;
        return Ok(Code::Done);
    }
    let api = if all_namespaces {
        context.all_jobs()
    } else {
        context.jobs()
    };
    list("IPUJobs", &api, format, |jobs| table(jobs, all_namespaces)).await
}

/// Prints all objects of a kind, by namespace and name.
pub(super) async fn list<K>(
    kind: &str,
    api: &Api<K>,
    format: Format,
    table: impl FnOnce(&[K]) -> String,
) -> Result<Code, Failure>
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let listed = api.list(&ListParams::default()).await;
    let mut all = listed
        .map_err(|error| api_failure(format!("list {kind}"), error))?
        .items;
    all.sort_by_key(|object| (object.namespace(), object.name_any()));
    if all.is_empty() && format == Format::Table {
        output::say(&format!("No {kind} found."));
        return Ok(Code::Done);
    }
    output::result(&render(format, &List::new(&all), || table(&all))?)?;
    Ok(Code::Done)
}

/// Begin of the message of a waiting job.
const NOT_READY: &str = "partition not ready yet!";

fn table(jobs: &[DynamicObject], with_namespace: bool) -> String {
    let columns = [
        "NAMESPACE",
        "NAME",
        "STATUS",
        "CURRENT",
        "DESIRED",
        "READY",
        "IPUS",
        "AGE",
        "MESSAGE",
    ];
    let mut table = Table::new(&columns[usize::from(!with_namespace)..]);
    for job in jobs {
        let status = status_of(job);
        let created = job.metadata.creation_timestamp.as_ref();
        let age = created.and_then(|created| Some(time::age(time::of_jiff(created.0)?, now())));
        // It is repeated for each instance.
        let mut message = status.last_message.clone();
        while message.starts_with(&[NOT_READY, NOT_READY].concat()) {
            message.drain(..NOT_READY.len());
        }
        if message.chars().count() > MAX_MESSAGE {
            message = message.chars().take(MAX_MESSAGE - 1).chain(['…']).collect();
        }
        let cells = [
            job.namespace().unwrap_or_default(),
            job.name_any(),
            phase_of(&status),
            status.current_replicas.to_string(),
            status.desired_replicas.to_string(),
            status.ready_replicas.to_string(),
            status.ipus_held.to_string(),
            age.unwrap_or_default(),
            message,
        ];
        table.row(cells.into_iter().skip(usize::from(!with_namespace)));
    }
    table.to_string()
}
