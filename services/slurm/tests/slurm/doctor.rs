//! `ipu-slurm doctor`: each cause is planted on a host, found and named. The test of `render` has a healthy
//! cluster.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// The files of a host.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        let user = Command::new("id").arg("-un").output().unwrap();
        let user = String::from_utf8(user.stdout).unwrap();
        let root = host.0.path().display().to_string();
        host.write(
            "slurm.conf",
            &format!(
                "SlurmUser={}\nGresTypes=vipu\nPropagateResourceLimitsExcept=MEMLOCK\nLicenses=pod64:64\n\
                 JobSubmitPlugins=lua\nLaunchParameters=use_interactive_step\nPrologEpilogTimeout=700\n\
                 PrologSlurmctld={root}/prolog-slurmctld\nEpilogSlurmctld={root}/epilog-slurmctld\n\
                 TaskProlog={root}/task-prolog\nNodeName=n1 Gres=vipu:pod64:no_consume:64\n",
                user.trim()
            ),
        );
        host.write(
            "vipu.conf",
            &format!(
                "Proxy=http://127.0.0.1:8080\nProxyTokenFile={root}/token\nHostMap={root}/ipum.allocs\n"
            ),
        );
        host.write("pod64.conf", &format!("ApiHost=pod\nIpuofDir={root}/ipuof\n"));
        fs::write(host.path("ipum.allocs"), b"# h\xf6st\nn1:ipum1\n").unwrap();
        host.write("job_submit.lua", "return slurm.SUCCESS\n");
        host.write("token", "secret\n");
        host.mode("token", 0o600);
        host.mode("", 0o755);
        fs::create_dir(host.path("ipuof")).unwrap();
        host.mode("ipuof", 0o755);
        for name in ["prolog-slurmctld", "epilog-slurmctld", "task-prolog"] {
            host.write(name, "#!/bin/sh\necho export IPUOF_VIPU_API_PARTITION_ID=p\n");
            host.mode(name, 0o755);
        }
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
    }

    fn replace(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(name)).unwrap();
        assert!(text.contains(from));
        self.write(name, &text.replace(from, to));
    }

    /// Returns the findings that are errors, besides those of the plugin: the host has no real Slurm.
    fn errors(&self) -> Vec<String> {
        self.errors_of_version("24.11")
    }

    fn errors_of_version(&self, version: &str) -> Vec<String> {
        let output = Command::new(env!("CARGO_BIN_EXE_ipu-slurm"))
            .args(["doctor", "--slurm-version", version, "--directory"])
            .arg(self.0.path())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        text.lines()
            .filter(|line| line.starts_with("error: ") && !line.contains("srun --help"))
            // No proxy serves there.
            .filter(|line| !line.starts_with("error: Proxy = http://127.0.0.1:8080: "))
            .map(str::to_owned)
            .collect()
    }

    /// Checks that the only finding has this text.
    #[track_caller]
    fn assert_only(&self, expected: &str) {
        let errors = self.errors();
        assert_eq!(errors.len(), 1, "{expected}: {errors:?}");
        assert!(errors[0].contains(expected), "{expected}: {errors:?}");
    }
}

#[test]
fn a_healthy_host_has_no_finding() {
    assert_eq!(Host::new().errors(), Vec::<String>::new());
}

#[test]
fn a_script_that_slurmctld_does_not_find_is_found() {
    let host = Host::new();
    host.write("ipu_limits.lua", "return { models = { pod16 = {} } }\n");
    host.assert_only("ipu_limits.lua:1: models = pod16: pod16.conf is absent");
    fs::remove_file(host.path("job_submit.lua")).unwrap();
    host.assert_only("job_submit.lua is absent, and slurmctld does not start");
}

#[test]
fn a_second_controller_with_a_host_map_is_found() {
    let host = Host::new();
    host.write(
        "pod16.conf",
        &format!("ApiHost=other\nIpuofDir={}\n", host.path("ipuof").display()),
    );
    host.replace("slurm.conf", "pod64:64\n", "pod64:64,pod16:16\n");
    host.assert_only("works with one V-IPU controller, and");
}

#[test]
fn a_host_whose_jobs_use_only_licenses_needs_no_plugin_and_no_script() {
    let host = Host::new();
    host.replace("slurm.conf", " Gres=vipu:pod64:no_consume:64", "");
    for setting in ["GresTypes=vipu\n", "JobSubmitPlugins=lua\n"] {
        host.replace("slurm.conf", setting, "");
    }
    assert_eq!(host.errors(), Vec::<String>::new());
}

#[test]
fn a_setting_that_static_partitions_need_is_found() {
    let host = Host::new();
    let root = host.path("").display().to_string();
    for name in ["prolog", "epilog"] {
        host.write(name, "#!/bin/sh\n");
        host.mode(name, 0o755);
    }
    let hooks = format!("Prolog={root}prolog\nEpilog={root}epilog\nPrologFlags=Alloc\nTaskProlog=");
    host.replace("slurm.conf", "TaskProlog=", &hooks);
    host.replace("slurm.conf", "Gres=vipu:pod64:no_consume:64", "Gres=vipu:2:4");
    host.write(
        "vipu.conf",
        "Proxy=http://127.0.0.1:8080\nPoolDir=/var/lib/ipu-pool/%n\n",
    );
    assert_eq!(host.errors(), Vec::<String>::new());
    for (file, setting, finding) in [
        (
            "slurm.conf",
            format!("Prolog={root}prolog\n"),
            "Prolog is absent: no program does",
        ),
        (
            "slurm.conf",
            format!("Epilog={root}epilog\n"),
            "Epilog is absent: no program does",
        ),
        (
            "slurm.conf",
            "PrologFlags=Alloc\n".to_owned(),
            "PrologFlags is absent: tasks of a requeued job",
        ),
        (
            "vipu.conf",
            "PoolDir=/var/lib/ipu-pool/%n\n".to_owned(),
            "PoolDir is absent: without it",
        ),
    ] {
        host.replace(file, &setting, "");
        host.assert_only(finding);
        let text = fs::read_to_string(host.path(file)).unwrap();
        host.write(file, &format!("{setting}{text}"));
    }
}

#[test]
fn a_directory_of_job_files_below_a_closed_one_is_found() {
    let host = Host::new();
    host.mode("", 0o700);
    host.assert_only("jobs cannot enter ");
}

#[test]
fn a_mode_that_excludes_jobs_or_admits_others_is_found() {
    for (name, mode, finding) in [
        ("vipu.conf", 0o600, "jobs cannot read it; run chmod 644"),
        ("pod64.conf", 0o600, "jobs cannot read it; run chmod 644"),
        ("ipuof", 0o700, "jobs cannot read it; run chmod 755"),
        ("ipuof", 0o775, "others can write there; run chown "),
        ("ipuof", 0o777, "others can write there; run chown "),
        ("ipuof", 0o1777, "others can write there; run chown "),
        ("epilog-slurmctld", 0o777, "others can change it; run chown root"),
        ("token", 0o644, "others can read the token; run chmod 600"),
    ] {
        let host = Host::new();
        host.mode(name, mode);
        host.assert_only(&format!("{name}: {finding}"));
    }
}

#[test]
fn a_feature_that_no_node_has_is_found() {
    let host = Host::new();
    let model = format!(
        "ApiHost=pod\nIpuofDir={}\nNodeFeature=ipus\n",
        host.path("ipuof").display()
    );
    host.write("pod64.conf", &model);
    host.assert_only("none of the nodes n1 has this Feature");
    host.replace("slurm.conf", "NodeName=n1 ", "NodeName=n1 Features=ib,ipus ");
    assert_eq!(host.errors(), Vec::<String>::new());
}

#[test]
fn a_hook_that_is_not_executable_is_found() {
    let host = Host::new();
    host.mode("prolog-slurmctld", 0o644);
    host.assert_only("prolog-slurmctld: is not executable; run chmod 755");
}

#[test]
fn a_hook_for_slurmuser_alone_is_healthy_and_one_for_users_must_be_theirs() {
    let host = Host::new();
    host.mode("prolog-slurmctld", 0o700);
    assert_eq!(host.errors(), Vec::<String>::new());
    host.mode("task-prolog", 0o700);
    host.assert_only("task-prolog: is not executable");
}

#[test]
fn a_pattern_of_hooks_is_left_to_slurm() {
    let host = Host::new();
    host.replace(
        "slurm.conf",
        "TaskProlog=",
        "Prolog=/etc/slurm/prolog.d/*\nTaskProlog=",
    );
    assert_eq!(host.errors(), Vec::<String>::new());
}

#[test]
fn an_absent_hook_is_found() {
    let host = Host::new();
    fs::remove_file(host.path("epilog-slurmctld")).unwrap();
    host.assert_only("EpilogSlurmctld = ");
}

#[test]
fn a_variable_that_is_not_exported_is_found() {
    let host = Host::new();
    host.replace("task-prolog", "echo export ", "echo ");
    host.assert_only("task-prolog:2: Slurm sets only variables that are exported");
}

#[test]
fn the_misspelt_variable_of_the_seed_is_found() {
    let host = Host::new();
    host.replace("task-prolog", "VIPU_API_PARTITION", "VIPU_PARTITION");
    host.assert_only("task-prolog:2: IPUOF_VIPU_PARTITION_ID is not a Poplar variable");
}

#[test]
fn white_space_in_the_host_map_is_found() {
    let host = Host::new();
    host.write("ipum.allocs", "n1:ipum1, ipum2\n");
    host.assert_only("ipum.allocs:1:");
}

#[test]
fn a_time_limit_below_the_wait_is_found() {
    for key in ["PrologEpilogTimeout", "PrologTimeout"] {
        let host = Host::new();
        host.replace("slurm.conf", "PrologEpilogTimeout=700", &format!("{key}=60"));
        host.assert_only("Slurm kills PrologSlurmctld while it waits 600 s for IPUs");
    }
}

#[test]
fn an_absent_directory_is_found() {
    let host = Host::new();
    fs::remove_dir(host.path("ipuof")).unwrap();
    host.assert_only("IpuofDir = ");
}

#[test]
fn a_directory_that_slurmuser_cannot_write_is_found() {
    let host = Host::new();
    let text = fs::read_to_string(host.path("slurm.conf")).unwrap();
    let rest = text.split_once('\n').unwrap().1;
    host.write("slurm.conf", &format!("SlurmUser=12345\n{rest}"));
    let errors = host.errors().join("\n");
    assert!(
        errors.contains("ipuof: SlurmUser cannot write there; run chown 12345"),
        "{errors}"
    );
    assert!(
        errors.contains("token: SlurmUser does not own it; run chown 12345"),
        "{errors}"
    );
}

#[test]
fn a_fifo_in_the_place_of_a_file_is_found_without_a_wait() {
    for name in [
        "slurm.conf",
        "vipu.conf",
        "pod64.conf",
        "other.conf",
        "gres.conf",
        "plugstack.conf",
        "v-ipu-plugin.conf",
        "ipum.allocs",
        "token",
    ] {
        let host = Host::new();
        let path = host.path(name);
        let _ = fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        host.mode(name, 0o600);
        let errors = host.errors().join("\n");
        assert!(
            errors.contains(name) && errors.contains("is not a regular file"),
            "{name}: {errors}"
        );
    }
}

#[test]
fn settings_that_slurm_conf_lacks_are_found() {
    for (line, finding) in [
        ("GresTypes=vipu\n", "GresTypes is absent"),
        (
            "PropagateResourceLimitsExcept=MEMLOCK\n",
            "PropagateResourceLimitsExcept is absent",
        ),
        ("JobSubmitPlugins=lua\n", "JobSubmitPlugins is absent"),
        ("Licenses=pod64:64\n", "Licenses is absent"),
    ] {
        let host = Host::new();
        host.replace("slurm.conf", line, "");
        host.assert_only(finding);
    }
}

#[test]
fn a_slurm_that_loses_licenses_is_found() {
    let errors = Host::new().errors_of_version("25.11.6");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].contains("Slurm 25.11.6: requeued jobs lose their licenses"),
        "{errors:?}"
    );
}
