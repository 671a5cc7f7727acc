// Who shows something is told when it has changed, at most once in a frame: a stream of a thousand tokens a second costs
// as many renderings as the screen can show.
import { useLayoutEffect, useReducer } from 'preact/hooks';

const watchers = new Map();
const dirty = new Set();
let frame = 0;

function flush() {
  frame = 0;
  const now = [...dirty];
  dirty.clear();
  for (const what of now) for (const heard of watchers.get(what) ?? []) heard();
}

/// `what`: an object or a word.
export function changed(what) {
  dirty.add(what);
  frame ||= requestAnimationFrame(flush);
}

export function watch(what, heard) {
  if (!watchers.has(what)) watchers.set(what, new Set());
  watchers.get(what).add(heard);
  return () => {
    watchers.get(what)?.delete(heard);
    if (watchers.get(what)?.size === 0) watchers.delete(what);
  };
}

/// Renders the component again when `what` has changed.
export function useChanges(what) {
  const [, again] = useReducer((count) => count + 1, 0);
  useLayoutEffect(() => watch(what, again), [what]);
}
