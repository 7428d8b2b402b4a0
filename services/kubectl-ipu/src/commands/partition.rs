//! `kubectl ipu partition`: creates, lists and explains IPUPartitions.

use std::time::Duration;

use ipu_k8s::crd::{IpuPartition, IpuPartitionSpec, IpuPartitionStatus};
use ipu_proxy_client::cli::{Table, time};
use ipu_proxy_client::now;
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};

use super::get::list;
use crate::cli::{CreatePartition, Format, Partition};
use crate::context::Context;
use crate::exit_code::{Code, Failure, api_failure};
use crate::output::{self, printable, render};

/// Interval in which `--wait` reads the status.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a command about IPUPartitions.
pub(crate) async fn partition(
    command: Partition,
    context: &Context,
    format: Format,
) -> Result<Code, Failure> {
    let api = Api::namespaced(context.client.clone(), &context.namespace);
    match command {
        Partition::Create(arguments) => create(arguments, &api, context, format).await,
        Partition::List { all_namespaces } => {
            let api = if all_namespaces {
                Api::all(context.client.clone())
            } else {
                api
            };
            list("IPUPartitions", &api, format, |all| table(all, all_namespaces)).await
        }
        Partition::Why { name } => {
            let partition = read(&name, &api, context).await?;
            output::result(&render(format, &partition, || explanation(&partition))?)?;
            Ok(Code::Done)
        }
    }
}

async fn read(name: &str, api: &Api<IpuPartition>, context: &Context) -> Result<IpuPartition, Failure> {
    let action = || format!("read IPUPartition {}/{name}", context.namespace);
    api.get(name).await.map_err(|error| api_failure(action(), error))
}

async fn create(
    arguments: CreatePartition,
    api: &Api<IpuPartition>,
    context: &Context,
    format: Format,
) -> Result<Code, Failure> {
    let name = arguments.name;
    let spec = IpuPartitionSpec {
        size: arguments.size,
        controller: arguments.controller,
        allocation: arguments.allocation,
        gcds: arguments.gcds,
        reconfigurable: arguments.reconfigurable.then_some(true),
        priority: arguments.priority,
        preemptible: arguments.preemptible.then_some(true),
        account: arguments.account,
        ttl_seconds: arguments.ttl,
        attempt: None,
    };
    let action = format!("create IPUPartition {}/{name}", context.namespace);
    let created = api
        .create(&PostParams::default(), &IpuPartition::new(&name, spec))
        .await;
    let mut partition = created.map_err(|error| api_failure(action, error))?;
    let mut last = String::new();
    while arguments.wait && status_of(&partition).config_map.is_none() {
        if let Some(reason) = status_of(&partition).reason
            && reason.code.is_permanent()
        {
            let fix = format!("withdraw it by `kubectl delete ipupartition {name}`");
            let message = format!("IPUPartition {name} can never fit: {reason}; {fix}");
            return Err(Failure::new(Code::Impossible, message));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        partition = read(&name, api, context).await?;
        let text = explanation(&partition);
        if text != last {
            output::say(text.trim_end());
            last = text;
        }
    }
    output::result(&render(format, &partition, || {
        format!("ipupartition/{name} created\n")
    })?)?;
    Ok(Code::Done)
}

/// Returns the status; the default one before the operator has written any.
fn status_of(partition: &IpuPartition) -> IpuPartitionStatus {
    partition.status.clone().unwrap_or_default()
}

fn table(all: &[IpuPartition], with_namespace: bool) -> String {
    let columns = [
        "NAMESPACE",
        "NAME",
        "IPUS",
        "PHASE",
        "CONTROLLER",
        "AGE",
        "REASON",
    ];
    let mut table = Table::new(&columns[usize::from(!with_namespace)..]);
    for partition in all {
        let status = status_of(partition);
        let created = partition.metadata.creation_timestamp.as_ref();
        let age = created.and_then(|created| Some(time::age(time::of_jiff(created.0)?, now())));
        let cells = [
            partition.namespace().unwrap_or_default(),
            partition.name_any(),
            partition.spec.size.to_string(),
            status.phase,
            status.controller.unwrap_or_default(),
            age.unwrap_or_default(),
            status.reason.map(|reason| reason.to_string()).unwrap_or_default(),
        ];
        table.row(cells.into_iter().skip(usize::from(!with_namespace)));
    }
    table.to_string()
}

/// Returns why a partition is not active, or how Pods use it.
fn explanation(partition: &IpuPartition) -> String {
    let (name, status) = (partition.name_any(), status_of(partition));
    let text = match (&status.reason, &status.config_map) {
        (Some(reason), _) => format!("{name} is {}: {reason}", status.phase),
        (None, Some(config_map)) => {
            let nodes = match &status.node_label {
                Some(label) => format!(" on nodes with the label {label}"),
                None => String::new(),
            };
            format!(
                "{name} is {}: Pods{nodes} use it by envFrom of the ConfigMap {config_map}",
                status.phase
            )
        }
        (None, None) => format!(
            "the operator has not reconciled {name} yet: if it stays so for some seconds, use `kubectl ipu doctor`"
        ),
    };
    printable(&text) + "\n"
}
