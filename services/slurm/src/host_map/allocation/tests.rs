//! Replies of the controller that are lost, with a proxy that knows whether the file `exists` is there.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::*;
use crate::scripted_proxy::{Response, ScriptedProxy};

/// A controller with at most one allocation.
struct Site {
    root: tempfile::TempDir,
    conf: ConfFiles,
    proxy: ProxyClient,
}

impl Site {
    /// Returns a site whose AllocationCreate ends with these lines.
    fn new(create: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path();
        let shown = path.display();
        for (name, lines) in [("create", create), ("remove", "rm exists")] {
            let script = path.join(name);
            fs::write(&script, format!("#!/bin/sh\ncd {shown}\n{lines}\n")).unwrap();
            fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        }
        let settings = format!(
            "ApiHost=pod\nIpuofDir={shown}\nHostMap={shown}/map\n\
             AllocationCreate={shown}/create {{allocation}} {{agents}}\n\
             AllocationRemove={shown}/remove {{allocation}}\n"
        );
        fs::write(path.join("vipu.conf"), settings).unwrap();
        let conf = crate::conf_files::load(path, &[]).unwrap();
        let exists = path.join("exists");
        let proxy = ScriptedProxy::start(move |_| match exists.exists() {
            true => Response::ok(&json!({"controller": "pod:8090", "allocation": "c7", "partitions": []})),
            false => Response::problem(422, "ControllerRefused"),
        });
        let proxy = proxy.client();
        Self { root, conf, proxy }
    }

    fn allocations(&self) -> Allocations<'_> {
        let found = Allocations::of(&self.conf);
        found.unwrap_or_else(|failure| panic!("{}", failure.0)).unwrap()
    }

    async fn create(&self) -> Result<AllocationId, String> {
        let start = RunStart::from_uid("7.1764000000").unwrap();
        let machines = [AgentId::new("a1").unwrap()];
        let created = self
            .allocations()
            .create(&self.proxy, "c", &start, &machines)
            .await;
        created.map_err(|failure| failure.0)
    }

    async fn remove(&self) -> Result<bool, String> {
        let start = RunStart::from_uid("7.1764000000").unwrap();
        let removed = self.allocations().remove(&self.proxy, "c", &start).await;
        removed.map_err(|failure| failure.0)
    }

    fn has(&self, name: &str) -> bool {
        self.root.path().join(name).exists()
    }
}

#[tokio::test]
async fn an_allocation_whose_reply_was_lost_belongs_to_the_job() {
    let site = Site::new("touch exists; exit 28");
    assert_eq!(site.create().await.unwrap().to_string(), "c7");
    assert!(site.has("exists"));
    assert_eq!(site.remove().await, Ok(true));
    assert!(!site.has("exists") && !site.has("c-7.allocation"));
}

#[tokio::test]
async fn a_command_that_creates_nothing_leaves_nothing() {
    let site = Site::new("echo no agent a1 >&2; exit 3");
    let problem = site.create().await.unwrap_err();
    assert!(problem.ends_with("no agent a1"), "{problem}");
    assert!(!site.has("c-7.allocation"));
}

#[tokio::test]
async fn an_allocation_that_may_come_later_is_removed_at_the_end_of_the_run() {
    // A signal ended it, and the controller may still have the request.
    let site = Site::new("kill -9 $$");
    site.create().await.unwrap_err();
    assert!(site.has("c-7.allocation"));
    fs::write(site.root.path().join("exists"), "").unwrap();
    assert_eq!(site.remove().await, Ok(true));
    assert!(!site.has("exists") && !site.has("c-7.allocation"));
}

#[tokio::test]
async fn an_allocation_of_another_owner_is_not_removed() {
    let site = Site::new("exit 3");
    fs::write(site.root.path().join("exists"), "").unwrap();
    let problem = site.create().await.unwrap_err();
    assert!(problem.contains("did not create it for this job"), "{problem}");
    assert_eq!(site.remove().await, Ok(false));
    assert!(site.has("exists") && !site.has("c-7.allocation"));
}
