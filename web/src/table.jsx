// A JSON value as a table: objects by field, lists of objects by row.

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const kMostColumns = 12;

function columnsOf(list) {
  if (list.length === 0 || !list.every(isObject)) return null;
  const columns = [...new Set(list.flatMap(Object.keys))];
  return columns.length > 0 && columns.length <= kMostColumns ? columns : null;
}

function Value({ value }) {
  if (value === null) return <span class="muted">null</span>;
  if (value === undefined) return null;
  if (typeof value === 'object') return <JsonTable value={value} />;
  return <span class={typeof value}>{String(value)}</span>;
}

export function JsonTable({ value }) {
  if (Array.isArray(value)) {
    const columns = columnsOf(value);
    if (value.length === 0) return <span class="muted">empty list</span>;
    if (!columns)
      return (
        <ol class="values">
          {value.map((each, i) => <li key={i}><Value value={each} /></li>)}
        </ol>
      );
    return (
      <table>
        <thead><tr>{columns.map((name) => <th scope="col" key={name}>{name}</th>)}</tr></thead>
        <tbody>
          {value.map((row, i) => <tr key={i}>{columns.map((name) => <td key={name}><Value value={row[name]} /></td>)}</tr>)}
        </tbody>
      </table>
    );
  }
  if (!isObject(value)) return <Value value={value} />;
  const fields = Object.entries(value);
  if (fields.length === 0) return <span class="muted">empty</span>;
  return (
    <table>
      <tbody>
        {fields.map(([name, each]) => <tr key={name}><th scope="row">{name}</th><td><Value value={each} /></td></tr>)}
      </tbody>
    </table>
  );
}

/// The value of an answer that has a form; undefined while it is not complete.
export function valueOf(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === 'object' && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}
