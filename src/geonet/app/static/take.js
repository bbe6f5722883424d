// What can be taken away: files, a link, and code.

import { button } from "./view.js";
import { exported } from "./server.js";
import { fragmentOf } from "./link.js";
import { pythonOf } from "./python_code.js";

const FILES = {
  gif: "GIF",
  png: "PNG strip",
  npz: ".npz",
  html: "HTML page",
  source: "First density",
  target: "Second density",
};

// now: gives the question of what is on the page, and the time; say: shows a sentence.
export function showTake(root, now, say) {
  for (const [kind, label] of Object.entries(FILES)) {
    root.append(button(label, label, () => saveFile(kind, now, say)));
  }
  root.append(button("Copy link", "Copy link", () => copyLink(now, say)));
  root.append(button("Copy as Python", "Copy as Python", () => copyCode(now, say)));
}

async function saveFile(kind, now, say) {
  say(`Making the ${FILES[kind]} …`);
  try {
    const { blob, name } = await exported(kind, now().question());
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    say(`Saved ${name}.`);
  } catch (error) {
    say(error.message);
  }
}

async function copyLink(now, say) {
  const { setup, t } = now();
  history.replaceState(null, "", await fragmentOf(setup, t));
  await copied(location.href, "The link is copied; the address shows it too.", say);
}

async function copyCode(now, say) {
  const { setup, t } = now();
  await copied(await pythonOf(setup, t), "The code is copied.", say);
}

async function copied(text, done, say) {
  try {
    await navigator.clipboard.writeText(text);
    say(done);
  } catch {
    say("The browser does not let this page copy; allow it to use the clipboard.");
  }
}
