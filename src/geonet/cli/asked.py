"""Options of `geonet geodesic` that do not fit are refused here, before torch is imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from geonet.errors import FileError, InputError

if TYPE_CHECKING:
    from geonet.measures.contents import Kind
    from geonet.measures.density import Mass

# Number of times unless --times is given.
TIMES = {".png": 5, ".npz": 11, ".gif": 31, ".mp4": 61, ".html": 33}
ANIMATIONS = (".gif", ".mp4")
EVEN = (*ANIMATIONS, ".html")  # their times are
PLOTS = {  # whether they show the times that are asked for
    **{"frames": True, "velocity": True, "slices": True},
    **{"history": False, "tracks": False},
}
MOST_FRAMES = 100  # in a picture


def check_ends(source: Path | None, target: Path | None) -> tuple[Path, Path]:
    """Both files; refuses a single one."""
    if source is None or target is None:
        raise InputError("A geodesic has two ends; give two files, or --pairs CSV.")
    return source, target


def check_folder(extra: list[str], output: Path | None) -> Path:
    """Where the answers of many pairs go; refuses options for a single pair."""
    if extra:
        raise InputError(f"--pairs goes without {extra[0]}; the folder's summary.csv has it all.")
    if output is None or output.suffix.lower() in TIMES:
        raise InputError("--pairs writes a file for each pair; give a folder, -o FOLDER.")
    return output


def check_output(output: Path | None, *inputs: Path) -> None:
    """Refuse a file that could not be written, or is one of the inputs, before any work."""
    if output is None:
        return
    try:
        read = output.resolve() in [file.resolve() for file in inputs]  # links and .. too
    except (OSError, RuntimeError, ValueError):  # a loop of links: what reads it will say so
        read = False
    if read:
        raise FileError(f"{output} is one of the two files that are read; give another name.")
    if output.suffix.lower() not in TIMES:
        raise FileError(f"Cannot write {output}: give a name that ends in {', '.join(TIMES)}.")
    if output.suffix.lower() == ".mp4":
        from geonet.plotting.video import check_ffmpeg

        check_ffmpeg(output)
    try:
        if not output.parent.is_dir():
            raise FileError(f"The folder {output.parent} does not exist; create it first.")
        if output.is_dir():
            raise FileError(f"{output} is a folder; give the name of a file.")
    except OSError as error:  # a name that is too long
        raise FileError(f"Cannot write {output}: {error.strerror}; give another name.") from error


def check_plot(plot: str | None, output: Path | None, times: str | None) -> None:
    """Refuse a kind of picture that does not exist or does not fit the other options."""
    if plot is None:
        return
    if output is None or output.suffix.lower() != ".png":
        raise InputError("--plot says what a png shows; give -o FILE.png.")
    if plot not in PLOTS:
        raise InputError(f"--plot is {plot!r}; choose from {', '.join(PLOTS)}.")
    if times is not None and not PLOTS[plot]:
        raise InputError(f"--plot {plot} shows all times; leave --times out.")


def check_look(look: dict[str, Any], stamp: bool, output: Path | None, plot: str | None) -> None:
    """Refuse colours and stamps for what has none; `look` holds the options that were given."""
    suffix = "" if output is None else output.suffix.lower()
    if not stamp and suffix not in ANIMATIONS:
        raise InputError("--no-stamp is for animations; give -o FILE.gif or FILE.mp4.")
    if look and suffix not in (".png", *EVEN):
        raise InputError(
            f"--{next(iter(look))} says what a picture looks like, and none is drawn; "
            "give -o FILE.png or FILE.gif, or --plot KIND with --pairs."
        )
    if look and plot == "tracks":
        raise InputError(f"--plot tracks has the colours of time; leave --{next(iter(look))} out.")


def kind_of_tables(points: bool, grid: bool) -> Kind | None:
    """What tables hold that do not say it, if anything was said."""
    if points and grid:
        raise InputError("--points and --grid exclude each other; give one of them.")
    return "points" if points else "values" if grid else None


def check_mass_of_frames(mass: str, output: Path | None) -> Mass:
    """Refuse another word, or no file that could have use for it."""
    if mass == "one":
        return mass
    if mass != "given":
        raise InputError(f"--mass is {mass!r}; give one or given.")
    if output is None:
        raise InputError("--mass says what to write, and nothing is; add -o FILE.")
    return mass


def parse_times(text: str | None, output: Path | None) -> list[float]:
    """Times in [0, 1] from a count ("5") or a list ("0,0.25,1")."""
    if text is None:
        text = str(TIMES[output.suffix.lower()] if output else 2)
    elif output is None:
        raise InputError("--times says what to write, and nothing is; add -o FILE.")
    remedy = "give a count of at least 2, or a list such as 0,0.5,1."
    if text.strip().isdecimal():
        count = int(text)
        most = MOST_FRAMES if output is not None and output.suffix.lower() == ".png" else 10_000
        if not 2 <= count <= most:
            raise InputError(f"--times is {count}; give a count of 2 to {most}, or a list.")
        return [k / (count - 1) for k in range(count)]
    if output is not None and output.suffix.lower() in EVEN:
        raise InputError("An animation runs evenly from t = 0 to t = 1; give --times as a count.")
    try:
        moments = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"--times is {text!r}; {remedy}") from error
    outside = [t for t in moments if not 0 <= t <= 1]
    if outside or not moments:
        what = f"has t = {outside[0]:g} outside [0, 1]" if outside else "is empty"
        raise InputError(f"--times {what}; {remedy}")
    return moments
