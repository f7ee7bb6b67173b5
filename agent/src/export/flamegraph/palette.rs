//! The colours: one row per reason of a wait. Pure.
//!
//! Colours differ in lightness as well as in hue, after the palettes of Okabe and Ito and of Tol, so that colour-blind
//! people can distinguish them; the names are in the legend and in the picture, too. Reasons that are mostly idleness
//! are grey.

use std::fmt::Write;

use super::tree::Class;
use crate::model::wait::WaitReason;

/// The class in style sheets, the colour for dark text on a white page, and the colour for light text on a black page.
struct Colour(&'static str, &'static str, &'static str);

/// Returns the colour of a reason.
const fn of_reason(reason: WaitReason) -> Colour {
    match reason {
        WaitReason::Futex => Colour("futex", "#e69f00", "#8a5a00"),
        WaitReason::Poll => Colour("poll", "#c9ced4", "#4a525b"),
        WaitReason::Disk => Colour("disk", "#ee7f4b", "#a13d0c"),
        WaitReason::Network => Colour("network", "#7cc0f0", "#155e91"),
        WaitReason::PageFault => Colour("page_fault", "#d88fb9", "#86336a"),
        WaitReason::Pipe => Colour("pipe", "#4fc3a1", "#00664b"),
        WaitReason::Sleep => Colour("sleep", "#e4e0d6", "#5b5648"),
        WaitReason::KernelLock => Colour("kernel_lock", "#f0e442", "#6f6800"),
        WaitReason::Child => Colour("child", "#b3a7e6", "#51428f"),
        WaitReason::Stopped => Colour("stopped", "#c9b8a8", "#5f4632"),
        WaitReason::MemoryLimit => Colour("memory_limit", "#e3a6d8", "#862a74"),
        WaitReason::RunQueue => Colour("run_queue", "#f4a6a6", "#8f1d2c"),
        WaitReason::Throttled => Colour("throttled", "#e8798a", "#a30d33"),
        WaitReason::Other => Colour("other", "#c3c58a", "#54561f"),
        WaitReason::Unknown => Colour("unknown", "#b5bbc2", "#3d444c"),
    }
}

const USER: Colour = Colour("user", "#f3b562", "#8a5410");
const KERNEL: Colour = Colour("kernel", "#7cc0f0", "#155e91");
const ALL: Colour = Colour("all", "#dfe3e8", "#333a42");

const fn of(class: Class) -> Colour {
    match class {
        Class::All => ALL,
        Class::Waiting { reason, .. } => of_reason(reason),
        Class::User => USER,
        Class::Kernel => KERNEL,
    }
}

/// Returns the class in style sheets.
pub(super) const fn class(class: Class) -> &'static str {
    of(class).0
}

/// Returns the style sheet's rules for the frames, for pages with a light and with a dark background.
pub(super) fn rules() -> String {
    let reasons = WaitReason::ALL.iter().copied().map(of_reason);
    let colours: Vec<Colour> = reasons.chain([USER, KERNEL, ALL]).collect();
    let mut css = String::new();
    // Writing to a string does not fail.
    for Colour(class, light, _) in &colours {
        write!(css, ".{class}{{fill:{light};background:{light}}}").ok();
    }
    css.push_str("@media(prefers-color-scheme:dark){");
    for Colour(class, _, dark) in &colours {
        write!(css, ".{class}{{fill:{dark};background:{dark}}}").ok();
    }
    css.push('}');
    css
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the relative luminance by WCAG 2.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn names_can_be_read_on_every_colour() {
        let colours = WaitReason::ALL.iter().copied().map(of_reason).chain([USER, KERNEL, ALL]);
        for Colour(class, light, dark) in colours {
            assert!(contrast(light, "#14171a") >= 4.5, "{class}: {}", contrast(light, "#14171a"));
            assert!(contrast(dark, "#f2f4f6") >= 4.5, "{class}: {}", contrast(dark, "#f2f4f6"));
        }
    }

    #[test]
    fn a_class_is_the_reasons_name() {
        for reason in WaitReason::ALL.iter().copied() {
            assert_eq!(class(Class::Waiting { reason, kernel: true }), reason.name());
        }
    }
}
