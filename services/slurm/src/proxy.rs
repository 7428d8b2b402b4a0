//! The client of the proxy.

use std::path::Path;

use ipu_proxy_client::{
    ClientError, ClientOptions, DeletePartition, PartitionDocument, ProxyClient, TlsFiles, Token,
};
use ipu_slurm::RunStart;
use ipu_slurm::conf::ConfFiles;

use crate::failure::Failure;
use crate::safe_file;

/// Creates the client that `vipu.conf` describes.
pub(crate) fn connect(conf: &ConfFiles) -> Result<ProxyClient, Failure> {
    let cluster = conf.cluster();
    let Some(url) = cluster.proxy() else {
        return Err(Failure(
            "vipu.conf has no Proxy: add Proxy=unix:/run/vipu-proxy/socket, the socket of vipu-proxy".into(),
        ));
    };
    // The client would wait for the writer of a FIFO.
    for path in [cluster.proxy_token_file(), cluster.proxy_ca()]
        .into_iter()
        .flatten()
    {
        if safe_file::is_special(Path::new(path)) {
            return Err(Failure(format!("{path} is not a regular file; remove it")));
        }
    }
    let mut options = ClientOptions::default();
    options.token = cluster.proxy_token_file().map(|path| Token::File(path.into()));
    options.tls = cluster.proxy_ca().map(TlsFiles::new);
    Ok(ProxyClient::new(url, options)?)
}

/// Returns whether the request itself is at fault, so that a repetition fails as well.
pub(crate) fn is_permanent(error: &ClientError) -> bool {
    match error {
        ClientError::Refused { problem, .. } => {
            matches!(problem.status, 400 | 422)
                || matches!(
                    problem.code.as_str(),
                    "NotTheOwner" | "AccountNotAllowed" | "PriorityTooHigh" | "Foreign"
                )
        }
        ClientError::Request { .. } => true,
        _ => false,
    }
}

/// Returns whether the partition exists, with other properties than those of the request.
pub(crate) fn has_other_properties(error: &ClientError) -> bool {
    error
        .problem()
        .is_some_and(|problem| problem.code == "OtherProperties")
}

/// Returns whether the machines of the request break a rule.
pub(crate) fn is_about_machines(error: &ClientError) -> bool {
    let problem = error.problem();
    problem.is_some_and(|problem| problem.status == 422 && problem.field.as_deref() == Some("machines"))
}

/// Returns whether the proxy has no such partition.
pub(crate) fn is_not_found(error: &ClientError) -> bool {
    error.problem().is_some_and(|problem| problem.status == 404)
}

/// Returns whether a requested partition is released, or is not active any more.
pub(crate) fn is_released(error: &ClientError) -> bool {
    is_not_found(error) || error.problem().is_some_and(|problem| problem.code == "NotActive")
}

/// Returns whether the partition has a later attempt than the request names.
pub(crate) fn is_old_attempt(error: &ClientError) -> bool {
    error
        .problem()
        .is_some_and(|problem| problem.code == "OldAttempt")
}

/// Returns the options that release the partition of a start that has ended, and no other: not that of a hook
/// which takes it over with a later attempt. The controller is forced to remove it only if the model has
/// `ForceDeletePartition=1`.
pub(crate) fn release_options(
    conf: &ConfFiles,
    start: &RunStart,
    partition: Option<&PartitionDocument>,
) -> DeletePartition {
    let mut options = DeletePartition::default();
    options.uid = Some(start.to_string());
    options.attempt = partition.map(|partition| partition.attempt);
    // After the loss of the ledger the partition has no known owner, but its id follows from the run.
    options.quarantined = true;
    options.without_force = !may_force(conf, partition);
    options
}

/// Returns the options that release a static partition, by the same rule.
pub(crate) fn pool_release_options(conf: &ConfFiles, partition: &PartitionDocument) -> DeletePartition {
    let mut options = DeletePartition::default();
    options.uid = partition.owner.as_ref().map(|owner| owner.uid.clone());
    options.without_force = !may_force(conf, Some(partition));
    options
}

/// Returns whether a model of the controller has `ForceDeletePartition=1`.
fn may_force(conf: &ConfFiles, partition: Option<&PartitionDocument>) -> bool {
    let controller = partition.and_then(|partition| partition.controller.as_ref());
    controller.is_some_and(|controller| {
        conf.models().any(|(_, model)| {
            model.api_address() == controller.name.as_str() && model.force_delete_partition()
        })
    })
}
