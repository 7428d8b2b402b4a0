//! `ipuctl render memlock`: a container runtime without a limit of locked memory (RDMA guide §7).

use serde::Serialize;

use crate::cli::{Format, Runtime};
use crate::exit_code::Failure;
use crate::table;

/// A systemd drop-in.
#[derive(Serialize)]
struct DropIn {
    path: String,
    content: &'static str,
    commands: [String; 2],
}

/// Returns the drop-in of the runtime's service.
pub(crate) fn render(runtime: Runtime, format: Format) -> Result<String, Failure> {
    let (service, content) = match runtime {
        Runtime::Containerd => ("containerd", "[Service]\nLimitMEMLOCK=infinity\n"),
        Runtime::K3s => ("k3s", "[Service]\nLimitMEMLOCK=infinity\n"),
        Runtime::K3sAgent => ("k3s-agent", "[Service]\nLimitMEMLOCK=infinity\n"),
        // Docker sets the limits of containers itself. The empty setting replaces the command of the unit.
        Runtime::Docker => (
            "docker",
            "[Service]\n\
             ExecStart=\n\
             ExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock \
             --default-ulimit memlock=-1:-1\n",
        ),
    };
    let drop_in = DropIn {
        path: format!("/etc/systemd/system/{service}.service.d/memlock.conf"),
        content,
        commands: [
            "sudo systemctl daemon-reload".into(),
            format!("sudo systemctl restart {service}"),
        ],
    };
    table::render(format, &drop_in, || {
        let [reload, restart] = &drop_in.commands;
        format!(
            "# Save as {}, then run:\n#   {reload}\n#   {restart}\n{content}",
            drop_in.path
        )
    })
}
