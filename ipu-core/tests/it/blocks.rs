//! Blocks and the index of free blocks.

use std::collections::BTreeSet;

use ipu_core::IpuCount;
use ipu_core::hardware::{Block, FreeIndex, IpuAddress, Topology};
use proptest::prelude::*;
use proptest::sample::Index;

fn count(ipus: u32) -> IpuCount {
    IpuCount::try_from(ipus).unwrap()
}

#[test]
fn blocks_have_a_readable_text_form() {
    let at = |ipu| IpuAddress { link_domain: 3, ipu };
    for (block, text) in [
        (
            Block::within(3, 8, count(8)).unwrap(),
            "IPUs 8 to 15 of link domain 3",
        ),
        (Block::within(3, 8, count(1)).unwrap(), "IPU 8 of link domain 3"),
        (Block::whole([2, 1]).unwrap(), "link domains 1, 2"),
        (
            Block::from_ipus([at(9), at(1)]).unwrap(),
            "IPUs 1, 9 of link domain 3",
        ),
        (
            Block::from_ipus([
                at(1),
                IpuAddress {
                    link_domain: 0,
                    ipu: 5,
                },
            ])
            .unwrap(),
            "IPUs 5 of link domain 0 and IPUs 1 of link domain 3",
        ),
    ] {
        assert_eq!(block.to_string(), text);
        let json = serde_json::to_string(&block).unwrap();
        assert_eq!(serde_json::from_str::<Block>(&json).unwrap(), block, "{json}");
    }
    let json = serde_json::to_string(&Block::within(3, 8, count(8)).unwrap()).unwrap();
    assert_eq!(json, r#"{"linkDomain":3,"first":8,"size":8}"#);
}

#[test]
fn an_invalid_block_is_rejected_with_the_rule() {
    let error = Block::within(0, 4, count(8)).unwrap_err().to_string();
    assert_eq!(
        error,
        "IPUs 4 to 11 are not a block: a block has 1, 2, 4, ... 64 IPUs and starts at a multiple of its size"
    );
    assert!(Block::within(0, 0, count(128)).is_err() && Block::within(0, 64, count(64)).is_err());
    assert!(Block::whole([1, 2, 3]).is_err() && Block::whole([1, 1]).is_err() && Block::whole([1]).is_err());
    assert!(Block::from_ipus([]).is_err());
    assert!(
        Block::from_ipus([IpuAddress {
            link_domain: 0,
            ipu: 64
        }])
        .is_err()
    );
    assert!(serde_json::from_str::<Block>(r#"{"linkDomain":0,"first":3,"size":2}"#).is_err());
    let error = serde_json::from_str::<Block>("[]").unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("a block is an object with linkDomain,")
    );
}

#[test]
fn a_block_converts_to_and_from_controller_places() {
    let topology: Topology = "1x16;2x16".parse().unwrap();
    let (cluster, places) = Block::whole([1, 2]).unwrap().places(&topology).unwrap();
    assert_eq!(
        (
            cluster.as_str(),
            places.len(),
            places[127].link_domain,
            places[127].ipu
        ),
        ("cl2", 128, 1, 63)
    );
    assert_eq!(
        Block::from_places(&topology, &cluster, &places),
        Block::whole([1, 2])
    );
    assert_eq!(Block::whole([0, 1]).unwrap().places(&topology), None);
    let (first, _) = Block::within(0, 0, count(1)).unwrap().places(&topology).unwrap();
    let error = Block::from_places(&topology, &first, &places)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "cluster cl1 has no IPU 0 in a link domain 1");
}

proptest! {
    #[test]
    fn ipus_in_any_order_form_their_aligned_block(domain in 0_u32..9, first: u8, order in 0_u32..=7, rotation in 0_usize..128) {
        let size = 1 << order;
        let block = if size > 64 { Block::whole([domain, domain + 2]).unwrap() } else { Block::within(domain, first & 63 & !(size as u8 - 1), count(size)).unwrap() };
        let mut ipus: Vec<IpuAddress> = block.addresses().collect();
        prop_assert_eq!(ipus.len(), size as usize);
        prop_assert_eq!(block.ipus(), size);
        prop_assert_eq!(block.size(), Some(count(size)));
        prop_assert_eq!(block.first(), ipus[0]);
        let len = ipus.len();
        ipus.rotate_left(rotation % len);
        prop_assert_eq!(Block::from_ipus(ipus), Ok(block));
    }

    #[test]
    fn a_block_of_any_ipus_has_exactly_these_ipus(
        masks in prop::collection::vec(prop::sample::select(vec![0, 1, 0xff, !0xff, u64::MAX >> 32, u64::MAX << 32, u64::MAX]), 1..5),
    ) {
        let domains = (0..).zip(&masks);
        let ipus: Vec<IpuAddress> = domains.flat_map(|(link_domain, mask)| {
            (0..64).filter(move |ipu| mask >> ipu & 1 == 1).map(move |ipu| IpuAddress { link_domain, ipu })
        }).collect();
        prop_assume!(!ipus.is_empty());
        let block = Block::from_ipus(ipus.iter().copied()).unwrap();
        prop_assert_eq!(block.ipus() as usize, ipus.len());
        prop_assert_eq!(block.addresses().collect::<Vec<_>>(), ipus);
    }

    #[test]
    fn the_index_behaves_like_a_set_of_free_ipus(
        // 33 and 1025 rows exceed the capacity of one and two tree levels by one.
        rows in prop::sample::select(vec![1_usize, 2, 33, 1025]),
        masks in prop::collection::vec(
            prop_oneof![any::<u64>(), prop::sample::select(vec![u64::MAX, u64::MAX << 32, 0xff])], 1..5,
        ),
        steps in prop::collection::vec((prop_oneof![0_u32..=6, Just(6)], any::<Index>(), 0_u8..3), 0..120),
    ) {
        // Of many rows only the first and the last few have free IPUs.
        let any = |row: usize| row == 0 || row + masks.len() > rows || rows == 33;
        let words: Vec<u64> = (0..rows).map(|row| if any(row) { masks[row % masks.len()] } else { 0 }).collect();
        let mut index = FreeIndex::new(words.iter().copied());
        let mut free: BTreeSet<(usize, u8)> = words.iter().enumerate()
            .flat_map(|(row, word)| (0..64).filter(move |ipu| word >> ipu & 1 == 1).map(move |ipu| (row, ipu))).collect();
        let all: Vec<(usize, u8)> = free.iter().copied().collect();
        let block = |row: usize, first: u8, size: u32| (first..first + size as u8).map(move |ipu| (row, ipu));
        for (order, at, operation) in steps {
            let size = count(1 << order);
            let is_free = |(row, first): (usize, u8), order: u32| {
                first % (1 << order) == 0 && block(row, first, 1 << order).all(|at| free.contains(&at))
            };
            let is_maximal = |(row, first): (usize, u8), order: u32| {
                let parent = (row, first & !(1 << order));
                is_free((row, first), order) && (order == 6 || !is_free(parent, order + 1))
            };
            let lowest = all.iter().copied().find(|start| is_free(*start, order));
            prop_assert_eq!(index.first_fit(size), lowest);
            let tightest = (order..=6)
                .find_map(|order| all.iter().copied().find(|start| is_maximal(*start, order)));
            let (row, first) = if all.is_empty() { (0, 0) } else { *at.get(&all) };
            let first = first & !(size.get() as u8 - 1);
            let taken = match operation {
                0 => {
                    let taken = index.take_best(size);
                    prop_assert_eq!(taken, tightest);
                    taken
                }
                1 => index.take(row, first, size).then_some((row, first)),
                _ => {
                    let legal = block(row, first, size.get()).all(|at| !free.contains(&at) && all.contains(&at));
                    prop_assert_eq!(index.release(row, first, size), legal);
                    if legal {
                        free.extend(block(row, first, size.get()));
                    }
                    None
                }
            };
            if let Some((row, first)) = taken {
                for at in block(row, first, size.get()) {
                    prop_assert!(free.remove(&at));
                }
            }
            prop_assert_eq!(index.free() as usize, free.len());
        }
    }
}

#[test]
fn the_index_rejects_invalid_blocks() {
    let mut index = FreeIndex::new([u64::MAX, 0b1111]);
    assert!(!index.take(0, 1, count(2)) && !index.take(2, 0, count(1)) && !index.take(1, 4, count(4)));
    assert!(
        !index.release(0, 0, count(1)) && !index.release(0, 0, count(128)) && !index.release(1, 8, count(1))
    );
    assert_eq!((index.free(), index.largest()), (68, Some(count(64))));
    assert_eq!(
        (index.first_fit(count(128)), index.take_best(IpuCount::MAX)),
        (None, None)
    );
    assert_eq!(FreeIndex::new([]).first_fit(count(1)), None);
}
