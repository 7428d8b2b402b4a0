//! The field `processId` of a request: a process of this host that holds the partition.

use ipu_allocator::process::{ProcessHolder, is_in_own_namespace};
use ipu_core::allocator::Request;
use ipu_proxy_client::PutPartition;
use ipu_serve::Peer;

use crate::problem::Problem;

/// Returns the holder evidence for the process in `body`; none if the request names no process.
pub(crate) fn local_holder(body: &PutPartition, peer: Option<&Peer>) -> Result<Option<String>, Problem> {
    let Some(pid) = body.process_id else {
        return Ok(None);
    };
    let invalid = |rule: &str, fix: &str| Problem::invalid("processId", pid, rule, fix);
    let fix = "use leaseSeconds, and renew the lease by heartbeats";
    let Some(client) = peer.and_then(Peer::process) else {
        return Err(invalid("is for clients on a Unix socket of the proxy", fix));
    };
    if body.lease_seconds.is_some() {
        return Err(invalid("and leaseSeconds exclude each other", "remove one"));
    }
    if pid == 0 {
        return Ok(Some(Request::UNOBSERVED.to_owned()));
    }
    let holder = ProcessHolder::of(pid).ok();
    match holder.filter(|_| client.pid.is_some_and(is_in_own_namespace) && is_in_own_namespace(pid)) {
        Some(holder) => Ok(Some(holder.to_string())),
        None => Err(invalid(
            "must be a running process in the pid namespace of the proxy, which its client shares",
            fix,
        )),
    }
}
