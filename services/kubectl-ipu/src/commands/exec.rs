//! `kubectl ipu exec`: runs a command in a Pod of a job, through `kubectl exec`, which handles terminals.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use kube::ResourceExt as _;

use super::logs::select;
use crate::cli::{Exec, Global};
use crate::context::Context;
use crate::exit_code::{Code, Failure};

/// Replaces this process by `kubectl exec`.
pub(crate) fn exec(arguments: &Exec, global: &Global) -> Result<Code, Failure> {
    // The runtime ends before the process is replaced.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::because(Code::Host, "start a runtime", error))?;
    let (context, pod) = runtime.block_on(async {
        let context = Context::open(global).await?;
        let pods = context.pods(&arguments.job).await?;
        let pod = select(&pods, &arguments.selection, &arguments.job)?.name_any();
        Ok::<_, Failure>((context, pod))
    })?;
    drop(runtime);
    let mut kubectl = Command::new("kubectl");
    kubectl.args(arguments_of(arguments, global, &context.namespace, &pod));
    let error = kubectl.exec();
    Err(Failure::because(Code::Host, "cannot run kubectl", error))
}

/// Returns the arguments of `kubectl`.
fn arguments_of(arguments: &Exec, global: &Global, namespace: &str, pod: &str) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(kubeconfig) = &global.kubeconfig {
        all.push(format!("--kubeconfig={}", kubeconfig.display()));
    }
    if let Some(context) = &global.context {
        all.push(format!("--context={context}"));
    }
    all.extend([format!("--namespace={namespace}"), "exec".into()]);
    if arguments.stdin {
        all.push("--stdin".into());
    }
    if arguments.tty {
        all.push("--tty".into());
    }
    all.extend([pod.to_owned(), "--".into()]);
    all.extend(arguments.command.iter().cloned());
    all
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn flags_and_command_are_passed_to_kubectl() {
        let line = [
            "kubectl-ipu",
            "--context",
            "pod",
            "exec",
            "-it",
            "training",
            "--",
            "sh",
            "-c",
            "id",
        ];
        let cli = Cli::try_parse_from(line).unwrap();
        let Command::Exec(exec) = cli.command else {
            panic!("another command");
        };
        assert_eq!(
            arguments_of(&exec, &cli.global, "team", "training-launcher").join(" "),
            "--context=pod --namespace=team exec --stdin --tty training-launcher -- sh -c id"
        );
    }
}
