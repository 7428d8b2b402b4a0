//! The IPUs of one partition, existing or possible.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use super::bitmap;
use crate::hardware::partition::IpuPlace;
use crate::hardware::topology::{IpuAddress, Topology};
use crate::ids::ClusterId;
use crate::units::IpuCount;

/// The reason that something is not a [`Block`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Not a power of two, too large for a link domain, or not aligned to its size.
    #[error("IPUs {first} to {} are not a block: a block has 1, 2, 4, ... 64 IPUs and starts at a multiple of its size", u32::from(*.first) + .size.saturating_sub(1))]
    Unaligned {
        /// The first IPU in its link domain.
        first: u8,
        /// Number of IPUs.
        size: u32,
    },
    /// Not 2, 4, 8, ... different link domains.
    #[error("{given} whole link domains are not a block: it takes 2, 4, 8, ... different ones")]
    LinkDomains {
        /// Number of given link domains.
        given: usize,
    },
    /// No IPUs, a repeated one, or an invalid number.
    #[error("{ipus} is not a set of IPUs: name at least one, none twice, 0 to 63 in each link domain")]
    Ipus {
        /// The given IPUs.
        ipus: String,
    },
    /// An IPU that does not exist.
    #[error("cluster {cluster} has no IPU {} in a link domain {}", .place.ipu, .place.link_domain)]
    UnknownIpu {
        /// The first IPU that does not exist.
        place: IpuPlace,
        /// The cluster of the lookup.
        cluster: ClusterId,
    },
}

/// The IPUs of one partition.
///
/// A partition that this crate places is *aligned*. It is a block of 1 to 64 IPUs of one link domain that
/// starts at a multiple of its size, or 2^k whole link domains. This is the buddy model, an
/// [assumption]. A controller may choose differently, so a block can also be any other set of IPUs. Such a
/// block is recorded, never chosen.
///
/// [assumption]: https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/placement.md#what-is-assumed
///
/// ```
/// use ipu_core::IpuCount;
/// use ipu_core::hardware::Block;
///
/// let block = Block::within(0, 8, IpuCount::try_from(4)?)?;
/// assert_eq!(block.addresses().map(|at| at.ipu).collect::<Vec<_>>(), [8, 9, 10, 11]);
/// assert!(Block::within(0, 2, IpuCount::try_from(4)?).is_err(), "a block is aligned to its size");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "Raw", into = "Raw")]
pub struct Block(Repr);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Repr {
    /// `1 << order` IPUs of one link domain, starting at a multiple of that size.
    Within { link_domain: u32, first: u8, order: u8 },
    /// Whole link domains: a power of two of them, at least two, ascending.
    Whole(Vec<u32>),
    /// Any other IPUs, ascending.
    Scattered(Vec<IpuAddress>),
}

/// The serialised form: only the fields of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    rename_all_fields = "camelCase",
    untagged,
    expecting = "a block is an object with linkDomain, first and size, with linkDomains, or with ipus"
)]
enum Raw {
    Within { link_domain: u32, first: u8, size: u8 },
    Whole { link_domains: Vec<u32> },
    Scattered { ipus: Vec<IpuAddress> },
}

impl Block {
    /// Creates the block of `size` IPUs of one link domain that starts at `first`.
    ///
    /// # Errors
    ///
    /// [`BlockError::Unaligned`] if `size` is more than 64 or `first` is not a multiple of it.
    pub fn within(link_domain: u32, first: u8, size: IpuCount) -> Result<Self, BlockError> {
        let size = size.get();
        if size > 64 || u32::from(first) % size != 0 || first >= 64 {
            return Err(BlockError::Unaligned { first, size });
        }
        Ok(Self::aligned(
            link_domain,
            u32::from(first),
            size.trailing_zeros(),
        ))
    }

    /// Creates the aligned block of `1 << order` IPUs at `first`; the caller ensures that both fit.
    pub(crate) const fn aligned(link_domain: u32, first: u32, order: u32) -> Self {
        Self(Repr::Within {
            link_domain,
            first: (first & 63) as u8,
            order: order as u8,
        })
    }

    /// Creates the block of whole link domains.
    ///
    /// # Errors
    ///
    /// [`BlockError::LinkDomains`] if they are not 2, 4, 8, ... different ones.
    ///
    /// ```
    /// use ipu_core::hardware::Block;
    ///
    /// assert_eq!(Block::whole([2, 3])?.ipus(), 128);
    /// assert!(Block::whole([1, 2, 3]).is_err(), "three link domains are no power of two");
    /// # Ok::<(), ipu_core::hardware::BlockError>(())
    /// ```
    pub fn whole(link_domains: impl IntoIterator<Item = u32>) -> Result<Self, BlockError> {
        let mut link_domains: Vec<u32> = link_domains.into_iter().collect();
        let given = link_domains.len();
        link_domains.sort_unstable();
        link_domains.dedup();
        if link_domains.len() != given || given < 2 || !given.is_power_of_two() {
            return Err(BlockError::LinkDomains { given });
        }
        Ok(Self(Repr::Whole(link_domains)))
    }

    /// Creates the block of exactly these IPUs, in any order: an aligned one if they form one.
    ///
    /// # Errors
    ///
    /// [`BlockError::Ipus`] if there are none, one is repeated, or a number is over 63.
    pub fn from_ipus(ipus: impl IntoIterator<Item = IpuAddress>) -> Result<Self, BlockError> {
        let mut ipus: Vec<IpuAddress> = ipus.into_iter().collect();
        ipus.sort_unstable();
        let twice = ipus.windows(2).any(|pair| pair.first() == pair.last());
        let (Some(first), Some(last)) = (ipus.first().copied(), ipus.last().copied()) else {
            return Err(BlockError::Ipus {
                ipus: String::from("nothing"),
            });
        };
        if twice || ipus.iter().any(|at| at.ipu > 63) {
            let ipus: Vec<String> = ipus.iter().map(|at| alloc::format!("{at}")).collect();
            return Err(BlockError::Ipus {
                ipus: ipus.join(", "),
            });
        }
        let size = u32::try_from(ipus.len())
            .ok()
            .and_then(|len| IpuCount::try_from(len).ok());
        let compact =
            first.link_domain == last.link_domain && usize::from(last.ipu - first.ipu) + 1 == ipus.len();
        if let (Some(size), true) = (size, compact)
            && let Ok(block) = Self::within(first.link_domain, first.ipu, size)
        {
            return Ok(block);
        }
        if ipus.len().is_multiple_of(64)
            && ipus
                .chunks(64)
                .all(|chunk| chunk.first().map(|at| at.link_domain) == chunk.last().map(|at| at.link_domain))
        {
            let domains = ipus.iter().step_by(64).map(|at| at.link_domain);
            if let Ok(block) = Self::whole(domains) {
                return Ok(block);
            }
        }
        Ok(Self(Repr::Scattered(ipus)))
    }

    /// Creates the block of the IPUs that a controller names in `cluster`, in any order.
    ///
    /// # Errors
    ///
    /// [`BlockError::UnknownIpu`] for an IPU that the cluster does not have, otherwise as
    /// [`Block::from_ipus`].
    ///
    /// ```
    /// use ipu_core::hardware::{Block, IpuPlace, Topology};
    ///
    /// let pod = Topology::pod64();
    /// let cluster = &pod.clusters()[0].id;
    /// let places = [4, 5, 6, 7].map(|ipu| IpuPlace { link_domain: 0, ipu });
    /// let block = Block::from_places(&pod, cluster, &places)?;
    /// assert_eq!(block.size().map(|size| size.get()), Some(4));
    /// assert_eq!(block.places(&pod), Some((cluster.clone(), places.to_vec())));
    /// # Ok::<(), ipu_core::hardware::BlockError>(())
    /// ```
    pub fn from_places(
        topology: &Topology,
        cluster: &ClusterId,
        places: &[IpuPlace],
    ) -> Result<Self, BlockError> {
        let mut ipus = Vec::new();
        for place in places {
            match topology.address(cluster, *place) {
                Some(at) => ipus.push(at),
                None => {
                    return Err(BlockError::UnknownIpu {
                        place: *place,
                        cluster: cluster.clone(),
                    });
                }
            }
        }
        Self::from_ipus(ipus)
    }

    /// Returns the block in the controller's numbering: its cluster, and its IPUs in ascending order; none if
    /// it is not in one cluster of `topology`.
    #[must_use]
    pub fn places(&self, topology: &Topology) -> Option<(ClusterId, Vec<IpuPlace>)> {
        let (cluster, _) = topology.place(self.first())?;
        let mut places = Vec::new();
        for at in self.addresses() {
            let (home, place) = topology.place(at)?;
            if home != cluster {
                return None;
            }
            places.push(place);
        }
        Some((cluster.clone(), places))
    }

    /// Returns the number of IPUs.
    #[must_use]
    pub fn ipus(&self) -> u32 {
        let long = match &self.0 {
            Repr::Within { order, .. } => return 1 << order,
            Repr::Whole(domains) => domains.len() * 64,
            Repr::Scattered(ipus) => ipus.len(),
        };
        u32::try_from(long).unwrap_or(u32::MAX)
    }

    /// Returns the size, if it is an aligned block and thus a legal partition.
    #[must_use]
    pub fn size(&self) -> Option<IpuCount> {
        match &self.0 {
            Repr::Within { order, .. } => IpuCount::from_order(u32::from(*order)),
            Repr::Whole(domains) => u32::try_from(domains.len() * 64).ok()?.try_into().ok(),
            Repr::Scattered(_) => None,
        }
    }

    /// Returns the first IPU.
    #[must_use]
    pub fn first(&self) -> IpuAddress {
        match &self.0 {
            Repr::Within {
                link_domain, first, ..
            } => IpuAddress {
                link_domain: *link_domain,
                ipu: *first,
            },
            Repr::Whole(domains) => IpuAddress {
                link_domain: domains.first().copied().unwrap_or(0),
                ipu: 0,
            },
            Repr::Scattered(ipus) => ipus.first().copied().unwrap_or(IpuAddress {
                link_domain: 0,
                ipu: 0,
            }),
        }
    }

    /// Iterates over the IPUs by link domain, in ascending order: bit i of the mask is IPU i. A scattered
    /// block may yield a link domain several times.
    pub fn masks(&self) -> impl Iterator<Item = (u32, u64)> {
        let (one, whole, scattered) = match &self.0 {
            Repr::Within {
                link_domain,
                first,
                order,
            } => {
                let mask = u64::MAX >> (64 - (1_u32 << order)) << first;
                (Some((*link_domain, mask)), [].as_slice(), [].as_slice())
            }
            Repr::Whole(domains) => (None, domains.as_slice(), [].as_slice()),
            Repr::Scattered(ipus) => (None, [].as_slice(), ipus.as_slice()),
        };
        one.into_iter()
            .chain(whole.iter().map(|domain| (*domain, u64::MAX)))
            .chain(
                scattered
                    .iter()
                    .map(|at| (at.link_domain, 1_u64 << (at.ipu & 63))),
            )
    }

    /// Iterates over the IPUs, ascending.
    pub fn addresses(&self) -> impl Iterator<Item = IpuAddress> {
        self.masks()
            .flat_map(|(link_domain, mask)| addresses(link_domain, mask))
    }
}

/// Iterates over the IPUs of a mask.
pub(crate) fn addresses(link_domain: u32, mask: u64) -> impl Iterator<Item = IpuAddress> {
    bitmap::bits(mask).map(move |bit| IpuAddress {
        link_domain,
        ipu: (bit & 63) as u8,
    })
}

impl TryFrom<Raw> for Block {
    type Error = BlockError;

    fn try_from(raw: Raw) -> Result<Self, BlockError> {
        match raw {
            Raw::Within {
                link_domain,
                first,
                size,
            } => {
                let count = IpuCount::try_from(u32::from(size)).map_err(|_| BlockError::Unaligned {
                    first,
                    size: u32::from(size),
                })?;
                Self::within(link_domain, first, count)
            }
            Raw::Whole { link_domains } => Self::whole(link_domains),
            Raw::Scattered { ipus } => Self::from_ipus(ipus),
        }
    }
}

impl From<Block> for Raw {
    fn from(block: Block) -> Self {
        match block.0 {
            Repr::Within {
                link_domain,
                first,
                order,
            } => Self::Within {
                link_domain,
                first,
                size: 1 << order,
            },
            Repr::Whole(link_domains) => Self::Whole { link_domains },
            Repr::Scattered(ipus) => Self::Scattered { ipus },
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, numbers: &mut dyn Iterator<Item = u32>| {
            for (place, number) in numbers.enumerate() {
                write!(f, "{}{number}", if place > 0 { ", " } else { "" })?;
            }
            Ok(())
        };
        match &self.0 {
            Repr::Within { order: 0, .. } => self.first().fmt(f),
            Repr::Within {
                link_domain,
                first,
                order,
            } => {
                write!(
                    f,
                    "IPUs {first} to {} of link domain {link_domain}",
                    u32::from(*first) + (1 << order) - 1
                )
            }
            Repr::Whole(domains) => {
                f.write_str("link domains ")?;
                list(f, &mut domains.iter().copied())
            }
            Repr::Scattered(ipus) => {
                for (place, domain) in ipus.chunk_by(|a, b| a.link_domain == b.link_domain).enumerate() {
                    f.write_str(if place > 0 { " and IPUs " } else { "IPUs " })?;
                    list(f, &mut domain.iter().map(|at| u32::from(at.ipu)))?;
                    write!(
                        f,
                        " of link domain {}",
                        domain.first().map_or(0, |at| at.link_domain)
                    )?;
                }
                Ok(())
            }
        }
    }
}
