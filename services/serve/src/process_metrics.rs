//! Metrics of the process under the standard names of Prometheus, and the version of the program.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use procfs::WithCurrentSystemInfo as _;
use procfs::process::Process;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

/// Registers `process_*` and `PROGRAM_build_info` in `registry`, which must have no prefix. The values are
/// read at each scrape; those that the kernel does not report are left out.
pub fn register_process_metrics(registry: &mut Registry, program: &str, version: &str) {
    let info = Family::<[(&'static str, String); 1], Gauge>::default();
    info.get_or_create(&[("version", version.to_owned())]).set(1);
    registry.register(format!("{program}_build_info"), "1, with the version", info);
    registry.register_collector(Box::new(ProcessCollector {
        started: SystemTime::now(),
    }));
}

#[derive(Debug)]
struct ProcessCollector {
    /// Start of the process, which registers its metrics within its first milliseconds.
    started: SystemTime,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        add(
            &mut encoder,
            "process_start_time_seconds",
            "Start of the process, in seconds since 1970",
            &ConstGauge::new(started.as_secs_f64()),
        )?;
        let Ok(process) = Process::myself() else {
            return Ok(());
        };
        if let Ok(stat) = process.stat() {
            let ticks = u32::try_from(stat.utime + stat.stime).unwrap_or(u32::MAX);
            let rate = u32::try_from(procfs::ticks_per_second()).unwrap_or(u32::MAX);
            add(
                &mut encoder,
                "process_cpu_seconds",
                "Processor time of the process, in seconds",
                &ConstCounter::new(f64::from(ticks) / f64::from(rate)),
            )?;
            add(
                &mut encoder,
                "process_resident_memory_bytes",
                "Resident memory of the process",
                &ConstGauge::new(stat.rss_bytes().get()),
            )?;
        }
        if let Ok(count) = process.fd_count() {
            add(
                &mut encoder,
                "process_open_fds",
                "Open file descriptors of the process",
                &ConstGauge::new(count as u64),
            )?;
        }
        Ok(())
    }
}

fn add(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}
