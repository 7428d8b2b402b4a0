//! Text rendering of the IPU-POD for `GET /sim/map`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ipu_core::hardware::IpuAddress;
use ipu_core::{AgentId, PartitionId};

use crate::state::SimState;

/// Letters of the partitions, in order; further partitions are drawn as `#`.
const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwyz0123456789";
/// Machines per row.
const MACHINES_PER_ROW: usize = 4;

/// Renders the IPU-POD: each link domain with its machines of four IPUs, and a legend.
pub(crate) fn draw(state: &SimState) -> String {
    let topology = &state.hardware.topology;
    let letters: BTreeMap<&PartitionId, char> = state
        .partitions
        .keys()
        .zip(
            LETTERS
                .iter()
                .copied()
                .map(char::from)
                .chain(std::iter::repeat('#')),
        )
        .collect();
    let mut holders = BTreeMap::new();
    for (id, partition) in &state.partitions {
        holders.extend(
            state
                .ipu_addresses(&partition.spec)
                .into_iter()
                .map(|address| (address, letters[id])),
        );
    }
    let pod = state.pod();
    let mut text = format!(
        "{topology}: {} IPUs, {} free, {} in {} partitions, {} bad\n",
        pod.ipus,
        pod.free,
        holders.len(),
        pod.partitions.len(),
        pod.bad.len()
    );
    for link_domain in 0..topology.link_domains() {
        draw_domain(&mut text, state, &holders, link_domain);
    }
    draw_legend(&mut text, state, &letters);
    text
}

fn draw_domain(text: &mut String, state: &SimState, holders: &BTreeMap<IpuAddress, char>, link_domain: u32) {
    let Some((cluster, number)) = state.hardware.topology.cluster_of(link_domain) else {
        return;
    };
    let Some(domain) = cluster.link_domains.get(number as usize) else {
        return;
    };
    push_line(
        text,
        format_args!("\ncluster {}, link domain {number}", cluster.id),
    );
    let names: Vec<&str> = domain
        .machines
        .iter()
        .map(|agent| agent.as_ref().map_or("(empty)", AgentId::as_str))
        .collect();
    // A longer name would break the frame of the other machines.
    let width = names
        .iter()
        .map(|name| name.len())
        .max()
        .unwrap_or(0)
        .clamp(9, 24);
    for (row, machines) in names.chunks(MACHINES_PER_ROW).enumerate() {
        let first = row * MACHINES_PER_ROW;
        let edge = |left, middle: &str, right| {
            let segments = vec!["─".repeat(width + 2); machines.len()];
            format!("  {left}{}{right}", segments.join(middle))
        };
        push_line(text, format_args!("{}", edge('┌', "┬", '┐')));
        let headings: Vec<String> = machines
            .iter()
            .map(|name| format!(" {name:<width$.width$} "))
            .collect();
        push_line(text, format_args!("  │{}│", headings.join("│")));
        let cells: Vec<String> = (first..first + machines.len())
            .map(|slot| format!(" {:<width$} ", cells(state, holders, link_domain, slot)))
            .collect();
        push_line(
            text,
            format_args!(
                "  │{}│  IPUs {}-{}",
                cells.join("│"),
                first * 4,
                (first + machines.len()) * 4 - 1
            ),
        );
        push_line(text, format_args!("{}", edge('└', "┴", '┘')));
    }
}

/// Renders the four IPUs of one machine: a letter or `·`, followed by `!` for a bad IPU.
fn cells(state: &SimState, holders: &BTreeMap<IpuAddress, char>, link_domain: u32, slot: usize) -> String {
    let ipus = (0..4_u8).filter_map(|i| Some(u8::try_from(slot * 4).ok()? + i));
    ipus.map(|ipu| {
        let address = IpuAddress { link_domain, ipu };
        let mark = match (state.hardware.topology.contains(address), holders.get(&address)) {
            (false, _) => ' ',
            (true, Some(letter)) => *letter,
            (true, None) if !is_allocated(state, address) => '-',
            (true, None) => '·',
        };
        let health = if state.hardware.bad.contains(&address) {
            '!'
        } else {
            ' '
        };
        format!("{mark}{health}")
    })
    .collect()
}

/// Returns whether any allocation contains the IPU.
fn is_allocated(state: &SimState, address: IpuAddress) -> bool {
    state
        .hardware
        .topology
        .allocations()
        .iter()
        .any(|allocation| state.hardware.is_in(address, allocation))
}

fn draw_legend(text: &mut String, state: &SimState, letters: &BTreeMap<&PartitionId, char>) {
    push_line(text, format_args!("\n  · free   ! bad   - in no allocation"));
    let widest = state
        .partitions
        .keys()
        .map(|id| id.as_str().len())
        .max()
        .unwrap_or(0);
    for (id, partition) in &state.partitions {
        let spec = &partition.spec;
        let gcds = if spec.num_gcds == 1 {
            "1 GCD".to_owned()
        } else {
            format!("{} GCDs", spec.num_gcds)
        };
        push_line(
            text,
            format_args!(
                "  {} {id:<widest$}  {:<9}  {:>3} IPUs, {gcds}, allocation {}{}",
                letters[id],
                partition.phase.label(),
                spec.ipus.len(),
                spec.allocation_id,
                if spec.reconfigurable {
                    ", reconfigurable"
                } else {
                    ""
                },
            ),
        );
        for error in partition.phase.errors() {
            push_line(text, format_args!("      {error}"));
        }
    }
}

/// Appends a line. Writing to a string cannot fail.
fn push_line(text: &mut String, content: std::fmt::Arguments<'_>) {
    text.write_fmt(content).ok();
    text.push('\n');
}
