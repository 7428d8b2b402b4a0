//! Leader election among operators with a Lease: renewed every second, expired after three.
//!
//! The Lease only saves work: two operators that lead at once are harmless, because every partition belongs
//! to one job, and every status is written on top of the version that was read.

use std::time::Duration;

use ipu_k8s::lease::{LeaderLease, LeaseOptions};
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

/// Participation in the election, until [released](Leadership::release) or dropped. After a drop the Lease
/// remains for its three seconds, as after a crash.
#[derive(Debug)]
pub struct Leadership {
    is_leader: watch::Receiver<bool>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Leadership {
    /// Joins the election for the Lease `name` in `namespace` under an `identity` that must be unique.
    #[must_use]
    pub fn join(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        let options = LeaseOptions {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            duration: Duration::from_secs(3),
            margin: Duration::from_secs(1),
            renew_interval: Duration::from_secs(1),
            poll_interval: Duration::from_millis(300),
        };
        Self::start(Some(LeaderLease::new(client, options)))
    }

    /// Leads without an election, for a single operator.
    #[must_use]
    pub fn without_election() -> Self {
        Self::start(None)
    }

    fn start(lease: Option<LeaderLease>) -> Self {
        let (sender, is_leader) = watch::channel(false);
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            tokio::select! {
                // A dropped sender stops the task as well.
                _ = stopped.wait_for(|stop| *stop) => {}
                () = compete(lease.as_ref(), &sender) => {}
            }
            sender.send_replace(false);
            if let Some(lease) = lease {
                lease.release().await;
            }
        });
        Self {
            is_leader,
            stop,
            task,
        }
    }

    /// Returns a receiver that tracks whether this process is the leader.
    #[must_use]
    pub fn is_leader(&self) -> watch::Receiver<bool> {
        self.is_leader.clone()
    }

    /// Leaves the election and releases the Lease. Call it after the controller has stopped.
    pub async fn release(mut self) {
        self.stop.send_replace(true);
        // The task ends after at most two requests.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sets `is_leader` whenever this process has the Lease, or for ever without one. Never returns.
async fn compete(lease: Option<&LeaderLease>, is_leader: &watch::Sender<bool>) {
    let Some(lease) = lease else {
        is_leader.send_replace(true);
        return std::future::pending().await;
    };
    loop {
        lease.lead().await;
        is_leader.send_replace(true);
        info!(leads = true, "this operator leads");
        lease.lost().await;
        is_leader.send_replace(false);
        warn!(leads = false, "this operator has lost the Lease");
    }
}
