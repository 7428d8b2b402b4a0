//! The hooks of slurmctld against scripts of bash and curl that do the same at the same proxy.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use ipu_test_slurm::{BED, Bed, BedOptions, Hook, bed};

use super::print_row;
use super::turns::{run_jobs, sum, timed_hook};

/// Address of the proxy in its bed.
const PROXY: &str = "http://127.0.0.1:8080";
/// Token of the hooks.
const TOKEN: &str = "token-of-the-hooks";

/// PrologSlurmctld: it asks slurmctld for the run, the proxy for an earlier partition of it, for the
/// partition and for its configuration, and checks the run before and after it writes the file of the job.
const CURL_PROLOG: &str = r#"#!/bin/bash
PATH=/usr/bin:/bin
[[ ,$SLURM_JOB_LICENSES, =~ ,pod64:([0-9]+), ]] || exit 0
size=${BASH_REMATCH[1]} job=$SLURM_JOB_ID
run() { scontrol -o show job "$job" | grep -o 'SubmitTime=[^ ]*'; }
submitted=$(run) || exit 1
token="authorization: Bearer $(<@BED@/files/token)"
url=@PROXY@/v1/partitions/curl-$job
curl -s -o /dev/null -H "$token" "$url"
owner='{"kind": "SlurmJob", "namespace": "testbed", "name": "slurm-'$job'", "uid": "'$job.$submitted'"}'
answer=$(curl -sf -X PUT -H "$token" -H 'content-type: application/json' \
  -d '{"size": '"$size"', "owner": '"$owner"'}' "$url?wait=5s") || exit 1
[[ $answer == *'"state":"active"'* ]] || exit 1
curl -sf -o "@BED@/ipuof/curl-$job.conf" -H "$token" "$url/ipuof-config" || exit 1
[ "$(run)" = "$submitted" ] || exit 1
file=@BED@/ipuof/testbed-$job.env
printf '%s\n' IPUOF_VIPU_API_HOST=127.0.0.1 IPUOF_VIPU_API_PORT=8090 "IPUOF_VIPU_API_PARTITION_ID=curl-$job" >"$file.new"
mv "$file.new" "$file"
[ "$(run)" = "$submitted" ] || exit 1
scontrol update "JobId=$job" "AdminComment=vipu: partition curl-$job of $size IPUs"
"#;

/// EpilogSlurmctld: it waits until no node has the job, in the intervals of the program.
const CURL_EPILOG: &str = r#"#!/bin/bash
PATH=/usr/bin:/bin
[[ ,$SLURM_JOB_LICENSES, =~ ,pod64:[0-9]+, ]] || exit 0
job=$SLURM_JOB_ID pause=20
while [[ $(scontrol -o show job "$job") == *' NodeList='[a-z]* ]]; do
  printf -v seconds 0.%03d "$pause"
  sleep "$seconds"
  pause=$((pause < 250 ? pause * 2 : 500))
done
token="authorization: Bearer $(<@BED@/files/token)"
url=@PROXY@/v1/partitions/curl-$job
curl -sf -o /dev/null -H "$token" "$url" || exit 1
curl -sf -o /dev/null -X DELETE -H "$token" "$url?wait=50s" || exit 1
rm -f "@BED@/ipuof/testbed-$job.env" "@BED@/ipuof/curl-$job.conf"
"#;

/// Adds licences, the program, and the files of the hooks.
pub(crate) fn with_ipus(options: BedOptions, program: &Path, proxy: &Path) -> BedOptions {
    options
        .licenses("pod64:64")
        .copy("hooks/ipu-slurm", program)
        .copy("hooks/vipu-proxy", proxy)
        .text(
            "etc/vipu.conf",
            &format!("Proxy={PROXY}\nProxyTokenFile={BED}/files/token\n"),
        )
        .text(
            "etc/pod64.conf",
            &format!("ApiHost=127.0.0.1\nApiPort=8090\nIpuofDir={BED}/ipuof\n"),
        )
        .text("files/token", TOKEN)
        .text("private/tokens", &format!("{TOKEN} slurm\n"))
}

/// Starts the proxy of a bed with a simulated controller.
pub(crate) fn start_proxy(bed: &mut Bed) {
    let token = bed.directory().join("files/token");
    fs::set_permissions(token, Permissions::from_mode(0o600)).expect("a mode");
    bed.succeed("chown", &["slurm", &format!("{BED}/files/token")]);
    bed.succeed("install", &["-d", "-o", "slurm", &format!("{BED}/ipuof")]);
    let arguments = format!(
        "{BED}/hooks/vipu-proxy --sim pod64 --sim-listen 127.0.0.1:8090 --sim-state {BED}/private/sim \
         --sim-delay-ms 0 --store file:{BED}/private/ledger.db --token-file {BED}/private/tokens \
         --listen 127.0.0.1:8080"
    );
    let words: Vec<&str> = arguments.split_whitespace().collect();
    bed.start_program("proxy", &words);
    bed.wait_until("the proxy is ready", || {
        bed.run("curl", &["-sf", &format!("{PROXY}/readyz")]).success
    });
}

/// Measures both hooks of jobs with 4 IPUs.
pub(crate) fn measure(program: &Path, proxy: &Path, pairs: usize) {
    let script = |text: &str| text.replace("@PROXY@", PROXY);
    let hooks = ["prolog-slurmctld", "epilog-slurmctld"];
    let options = with_ipus(BedOptions::new(), program, proxy);
    let options = timed_hook(options, Hook::PrologSlurmctld, hooks[0], &script(CURL_PROLOG));
    let options = timed_hook(options, Hook::EpilogSlurmctld, hooks[1], &script(CURL_EPILOG));
    let Some(mut bed) = bed("slurm", options) else {
        return;
    };
    start_proxy(&mut bed);
    let times = run_jobs(&bed, pairs, &["--licenses=pod64:4"], &hooks);
    let left = bed.succeed("curl", &["-sf", &format!("{PROXY}/v1/partitions")]);
    assert!(!left.contains("SlurmJob"), "{left}");
    let (own, other) = sum(&times[0], &times[1]);
    let [(prolog, other_prolog), (epilog, other_epilog)] = [times[0].clone(), times[1].clone()];
    print_row("PrologSlurmctld against bash + curl", prolog, other_prolog);
    print_row("EpilogSlurmctld against bash + curl", epilog, other_epilog);
    print_row(
        "PrologSlurmctld + EpilogSlurmctld against bash + curl",
        own,
        other,
    );
}
