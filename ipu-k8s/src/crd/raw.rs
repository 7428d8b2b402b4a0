//! Conversion from the wire form to the raw form of the core, field by field, so that the compiler reports a
//! field that is missing in either.

use ipu_core::{
    EnvVar, RawInteractive, RawJob, RawLauncher, RawMetadata, RawRestartPolicy, RawRollingUpdate, RawSpec,
    RawStrategy, RawWorkers,
};

use super::ipujob::{
    Interactive, IpuJob, IpuJobSpec, Launcher, ObjectMeta, RestartPolicy, Strategy, Workers,
};

impl IpuJob {
    /// Returns the job in the raw form of the core, which is independent of Kubernetes.
    ///
    /// The raw form omits everything that only Kubernetes can do: the pod template, the host network, another
    /// manager, and variables of the launcher with `valueFrom`.
    #[must_use]
    pub fn to_raw(&self) -> RawJob {
        let ObjectMeta {
            name,
            generate_name,
            namespace,
            uid,
            labels: _,
            annotations: _,
            other: _,
        } = self.metadata.clone();
        RawJob {
            metadata: RawMetadata {
                namespace,
                name,
                generate_name,
                uid,
            },
            spec: spec(self.spec.clone()),
        }
    }
}

fn spec(spec: IpuJobSpec) -> RawSpec {
    let IpuJobSpec {
        job_instances,
        ipus_per_job_instance,
        workers_per_job_instance,
        worker_per_job_instance,
        model_replicas_per_worker,
        model_replicas,
        ipus_per_model_replica,
        clean_pod_policy,
        interactive,
        launcher,
        restart_policy,
        workers,
        suspend,
        managed_by: _,
        ttl_seconds_after_finished,
        active_deadline_seconds,
        start_deadline_seconds,
        priority,
        account,
        preemptible,
        reconfigurable,
        allocation,
    } = spec;
    RawSpec {
        job_instances,
        ipus_per_job_instance,
        workers_per_job_instance,
        worker_per_job_instance,
        model_replicas_per_worker,
        model_replicas,
        ipus_per_model_replica,
        clean_pod_policy,
        interactive: interactive.map(|Interactive { ttl }| RawInteractive { ttl }),
        launcher: launcher.map(raw_launcher),
        restart_policy: restart_policy.map(restart),
        workers: workers.map(raw_workers),
        suspend,
        ttl_seconds_after_finished,
        active_deadline_seconds,
        start_deadline_seconds,
        priority,
        account,
        preemptible,
        reconfigurable,
        allocation,
    }
}

fn raw_launcher(launcher: Launcher) -> RawLauncher {
    let Launcher {
        command,
        env,
        tcp_interface,
    } = launcher;
    let literal = env.into_iter().filter(|var| var.value_from.is_none());
    RawLauncher {
        command,
        env: literal
            .map(|var| EnvVar {
                name: var.name,
                value: var.value.unwrap_or_default(),
            })
            .collect(),
        tcp_interface,
    }
}

fn restart(policy: RestartPolicy) -> RawRestartPolicy {
    let RestartPolicy {
        kind,
        back_off_limit,
        exit_codes,
        back_off_seconds,
    } = policy;
    RawRestartPolicy {
        kind,
        back_off_limit,
        exit_codes,
        back_off_seconds,
    }
}

fn raw_workers(workers: Workers) -> RawWorkers {
    let Workers {
        replicas,
        host_network: _,
        strategy,
        template: _,
    } = workers;
    RawWorkers {
        replicas,
        strategy: strategy.map(|Strategy { kind, rolling_update }| RawStrategy {
            kind,
            rolling_update: rolling_update.map(|update| RawRollingUpdate {
                max_surge: update.max_surge,
                max_unavailable: update.max_unavailable,
            }),
        }),
    }
}
