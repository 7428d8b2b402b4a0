//! Placement policies for tests of the components that use a policy: legal ones, and ones that break the
//! rules.

use core::cmp::Reverse;

use ipu_core::{
    BestFit, Block, FirstFit, InventoryView, IpuAddress, PlacementMode, PlacementPolicy, PlacementRequest,
};

use crate::random::Random;

/// A placement policy for tests. Each one is pure: the same view and request give the same block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestPolicy {
    /// Chooses the lowest block of the link domain with the most free IPUs.
    Spread,
    /// Chooses any free block; the seed and the free space decide.
    AnyBlock(u64),
    /// Declines one in three requests that fit; the seed and the free space decide.
    SometimesDeclines(u64),
    /// Chooses a block that is held, of the wrong size or misaligned in one of three placements.
    SometimesIllegal(u64),
    /// Panics in one of three placements.
    SometimesPanics(u64),
}

impl TestPolicy {
    /// Returns whether the policy places every request that fits.
    #[must_use]
    pub const fn is_complete(self) -> bool {
        matches!(self, Self::Spread | Self::AnyBlock(_))
    }
}

impl PlacementPolicy for TestPolicy {
    fn name(&self) -> &'static str {
        match self {
            Self::Spread => "spread",
            Self::AnyBlock(_) => "any-block",
            Self::SometimesDeclines(_) => "sometimes-declines",
            Self::SometimesIllegal(_) => "sometimes-illegal",
            Self::SometimesPanics(_) => "sometimes-panics",
        }
    }

    fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
        match *self {
            Self::Spread => {
                let free = |block: &Block| view.free_in(block.first().link_domain);
                view.blocks(request.size).min_by_key(|block| Reverse(free(block)))
            }
            Self::AnyBlock(seed) => any_block(view, request, &mut random_of(seed, view, request)),
            Self::SometimesDeclines(seed) => {
                let mut random = random_of(seed, view, request);
                if random.chance(33) {
                    return None;
                }
                any_block(view, request, &mut random)
            }
            Self::SometimesIllegal(seed) => {
                let mut random = random_of(seed, view, request);
                if random.chance(33) {
                    return illegal_block(request, &mut random);
                }
                any_block(view, request, &mut random)
            }
            Self::SometimesPanics(seed) => {
                let mut random = random_of(seed, view, request);
                assert!(!random.chance(33), "the policy of the test panics");
                any_block(view, request, &mut random)
            }
        }
    }
}

/// Returns the placement mode of a number: explicit with first fit, best fit or a [`TestPolicy`] that never
/// panics, or delegated. Two in eight numbers give a policy that is not complete.
#[must_use]
pub fn placement_mode(number: u64) -> PlacementMode {
    let seed = number / 8;
    match number % 8 {
        0 => PlacementMode::explicit(FirstFit),
        1 => PlacementMode::explicit(BestFit),
        2 => PlacementMode::explicit(TestPolicy::Spread),
        3 => PlacementMode::explicit(TestPolicy::AnyBlock(seed)),
        4 => PlacementMode::Delegated,
        5 => PlacementMode::explicit(TestPolicy::SometimesDeclines(seed)),
        6 => PlacementMode::explicit(TestPolicy::SometimesIllegal(seed)),
        _ => PlacementMode::explicit(TestPolicy::AnyBlock(seed.wrapping_add(1))),
    }
}

/// Returns a generator that depends only on the arguments of the policy.
fn random_of(seed: u64, view: &InventoryView<'_>, request: &PlacementRequest) -> Random {
    let blocks = view.blocks(request.size).map(|block| block.first());
    let mut random = Random::new(seed ^ u64::from(request.size.get()));
    let digest = blocks.fold(random.next(), |digest, at| {
        let place = u64::from(at.link_domain) * 64 + u64::from(at.ipu) + 1;
        Random::new(digest ^ place).next()
    });
    Random::new(digest)
}

fn any_block(view: &InventoryView<'_>, request: &PlacementRequest, random: &mut Random) -> Option<Block> {
    let count = u32::try_from(view.blocks(request.size).count()).unwrap_or(u32::MAX);
    view.blocks(request.size)
        .nth(usize::try_from(random.below(count)).ok()?)
}

/// Returns IPUs that are misaligned, of the wrong size, outside the hardware, or held if anything is.
fn illegal_block(request: &PlacementRequest, random: &mut Random) -> Option<Block> {
    let ipus = request.size.get();
    let first = match random.below(3) {
        0 => 1,
        1 => 0,
        _ => 64,
    };
    let ipus = ipus.min(32) + random.below(2);
    let address = |number: u32| {
        let link_domain = number / 64;
        let ipu = u8::try_from(number % 64).ok()?;
        Some(IpuAddress { link_domain, ipu })
    };
    Block::from_ipus((first..first + ipus).filter_map(address)).ok()
}
