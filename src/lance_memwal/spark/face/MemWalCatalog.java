package io.memwal.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The tables of a warehouse directory. What a directory holds, and what a statement does to it, Python decides. */
public class MemWalCatalog implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog {
  private static final String STORAGE = "storage.";

  private String name = null;
  private String warehouse = null;
  private final Map<String, String> storage = new HashMap<String, String>();

  public void initialize(String given, CaseInsensitiveStringMap options) {
    name = given;
    warehouse = options.get("warehouse");
    if (warehouse == null) {
      throw new IllegalArgumentException("set spark.sql.catalog." + given + ".warehouse to the directory of its tables");
    }
    for (Object item : options.asCaseSensitiveMap().entrySet()) {
      Map.Entry<String, String> entry = (Map.Entry<String, String>) item;
      if (((String) entry.getKey()).startsWith(STORAGE)) {
        storage.put((String) entry.getKey(), (String) entry.getValue());
      }
    }
  }

  public String name() {
    return name;
  }

  public Set<TableCatalogCapability> capabilities() {
    return java.util.Collections.singleton(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT);
  }

  // ---------------------------------------------------------------------------------------------------------- asking

  private ObjectNode place(String[] namespace) {
    ObjectNode made = Python.object();
    made.put("warehouse", warehouse);
    made.set("storage", Python.object(storage));
    made.set("namespace", array(namespace));
    return made;
  }

  ObjectNode place(Identifier table) {
    return place(table.namespace()).put("table", table.name());
  }

  private static ArrayNode array(String[] texts) {
    ArrayNode made = Python.JSON.createArrayNode();
    for (int i = 0; i < texts.length; i++) {
      made.add(texts[i]);
    }
    return made;
  }

  private Table table(Identifier ident, JsonNode found) throws NoSuchTableException {
    About about = About.parse(found);
    if (about == null) {
      throw new NoSuchTableException(ident);
    }
    Map<String, String> options = new HashMap<String, String>(storage);
    options.put("path", ((JsonNode) found.get("path")).asText());
    if (found.has("as_of")) {
      options.put("asOf", ((JsonNode) found.get("as_of")).asText());
    }
    return new MemWalTable(name + "." + ident, about.schema, options, about, true);
  }

  // ---------------------------------------------------------------------------------------------------------- tables

  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    List<String> names = About.texts((JsonNode) Python.ask("list_tables", place(namespace)).get("tables"));
    Identifier[] found = new Identifier[names.size()];
    for (int i = 0; i < found.length; i++) {
      found[i] = Identifier.of(namespace, (String) names.get(i));
    }
    return found;
  }

  public Table loadTable(Identifier ident) throws NoSuchTableException {
    JsonNode found = Python.ask("load_table", place(ident));
    return found.has("rows") ? new Rows(name + "." + ident, found) : table(ident, found);
  }

  /** VERSION AS OF: a checkpoint, a snapshot, or a version of the base table. */
  public Table loadTable(Identifier ident, String version) throws NoSuchTableException {
    return table(ident, Python.ask("load_table", place(ident).put("as_of", version)));
  }

  /** TIMESTAMP AS OF, in microseconds. */
  public Table loadTable(Identifier ident, long micros) throws NoSuchTableException {
    Instant moment = Instant.EPOCH.plus(micros, ChronoUnit.MICROS);
    return loadTable(ident, moment.toString());
  }

  /** CHANGES: what the change feed has between two moments. */
  public Changelog loadChangelog(Identifier ident, ChangelogContext context, CaseInsensitiveStringMap options)
      throws NoSuchTableException {
    JsonNode found = Python.ask("load_changelog", Changes.range(place(ident), context.range()));
    if (found.has("missing")) {
      throw new NoSuchTableException(ident);
    }
    return new Changes(name + "." + ident, found, storage);
  }

  public Table createTable(Identifier ident, TableInfo info) throws TableAlreadyExistsException, NoSuchNamespaceException {
    JsonNode found = Python.ask("create_table", definition(ident, info));
    if (found.has("exists")) {
      throw new TableAlreadyExistsException(ident);
    }
    if (found.has("no_namespace")) {
      throw new NoSuchNamespaceException(ident.namespace());
    }
    try {
      return table(ident, found);
    } catch (NoSuchTableException error) {
      throw new IllegalStateException("the table that was made is gone: " + ident);
    }
  }

  public StagedTable stageCreate(Identifier ident, TableInfo info) {
    return new Staged(this, definition(ident, info), info.schema(), false);
  }

  public StagedTable stageReplace(Identifier ident, TableInfo info) {
    return new Staged(this, definition(ident, info), info.schema(), true);
  }

  public StagedTable stageCreateOrReplace(Identifier ident, TableInfo info) {
    return new Staged(this, definition(ident, info), info.schema(), tableExists(ident));
  }

  /** The table of a statement, once `command` has created it, or found that its rows can be replaced. */
  MemWalTable begun(ObjectNode definition, String command) {
    JsonNode found = Python.ask(command, definition);
    if (!found.has("path")) {
      throw new IllegalStateException("the table or its namespace was created or dropped since the statement began; run it again");
    }
    Identifier ident = Identifier.of(new String[0], ((JsonNode) definition.get("table")).asText());
    try {
      return (MemWalTable) table(ident, found);
    } catch (NoSuchTableException error) {
      throw new IllegalStateException("the table was dropped since the statement began; run it again");
    }
  }

  private ObjectNode definition(Identifier ident, TableInfo info) {
    Statement.refuseOtherSource((String) info.properties().get(TableCatalog.PROP_PROVIDER));
    ObjectNode arguments = place(ident);
    arguments.set("schema", Python.parse(info.schema().json()));
    arguments.set("properties", Python.object(info.properties()));
    arguments.set("key", key(info.constraints()));
    arguments.set("partitioning", partitioning(info.partitions()));
    return arguments;
  }

  private static ArrayNode key(Constraint[] constraints) {
    ArrayNode made = Python.JSON.createArrayNode();
    for (int i = 0; i < constraints.length; i++) {
      if (!(constraints[i] instanceof PrimaryKey)) {
        throw new IllegalArgumentException("a table has a primary key and no other constraints");
      }
      NamedReference[] columns = ((PrimaryKey) constraints[i]).columns();
      for (int j = 0; j < columns.length; j++) {
        made.add(String.join(".", columns[j].fieldNames()));
      }
    }
    return made;
  }

  /** Transforms as a list of their name and arguments: [["bucket", 4, "id"]]. */
  private static ArrayNode partitioning(Transform[] transforms) {
    ArrayNode made = Python.JSON.createArrayNode();
    for (int i = 0; i < transforms.length; i++) {
      ArrayNode one = Python.JSON.createArrayNode().add(transforms[i].name());
      Expression[] arguments = transforms[i].arguments();
      for (int j = 0; j < arguments.length; j++) {
        if (arguments[j] instanceof NamedReference) {
          one.add(String.join(".", ((NamedReference) arguments[j]).fieldNames()));
        } else {
          one.add(((Literal) arguments[j]).value().toString());
        }
      }
      made.add(one);
    }
    return made;
  }

  public Table alterTable(Identifier ident, TableChange[] changes) throws NoSuchTableException {
    ArrayNode asked = Python.JSON.createArrayNode();
    for (int i = 0; i < changes.length; i++) {
      asked.add(change(changes[i]));
    }
    ObjectNode arguments = place(ident);
    arguments.set("changes", asked);
    return table(ident, Python.ask("alter_table", arguments));
  }

  private static ObjectNode change(TableChange change) {
    ObjectNode made = Python.object();
    if (change instanceof TableChange.AddColumn) {
      TableChange.AddColumn add = (TableChange.AddColumn) change;
      if (add.position() != null) {
        throw new IllegalArgumentException("a new column is the last one: leave out FIRST and AFTER");
      }
      if (add.defaultValue() != null) {
        throw new IllegalArgumentException("a column has no default value; leave out DEFAULT, and UPDATE the new column");
      }
      String name = String.join(".", add.fieldNames());
      StructType field = new StructType();
      field = add.comment() == null ? field.add(name, add.dataType()) : field.add(name, add.dataType(), true, add.comment());
      made.put("add", name).put("nullable", add.isNullable());
      made.set("schema", Python.parse(field.json()));
      return made;
    }
    if (change instanceof TableChange.DeleteColumn) {
      TableChange.DeleteColumn drop = (TableChange.DeleteColumn) change;
      return made.put("drop", String.join(".", drop.fieldNames())).put("if_exists", drop.ifExists().booleanValue());
    }
    if (change instanceof TableChange.RenameColumn) {
      TableChange.RenameColumn rename = (TableChange.RenameColumn) change;
      return made.put("rename", String.join(".", rename.fieldNames())).put("to", rename.newName());
    }
    throw new IllegalArgumentException("ALTER TABLE adds, drops and renames columns, nothing else");
  }

  public boolean dropTable(Identifier ident) {
    return ((JsonNode) Python.ask("drop_table", place(ident)).get("dropped")).asBoolean();
  }

  public void renameTable(Identifier from, Identifier to) {
    throw new IllegalArgumentException("a table is where its files are, and cannot be renamed: copy it with CREATE TABLE AS SELECT");
  }

  // ------------------------------------------------------------------------------------------------------ namespaces

  public String[][] listNamespaces() throws NoSuchNamespaceException {
    return listNamespaces(new String[0]);
  }

  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    List<String> names = About.texts((JsonNode) Python.ask("list_namespaces", place(namespace)).get("namespaces"));
    String[][] found = new String[names.size()][];
    for (int i = 0; i < found.length; i++) {
      found[i] = new String[namespace.length + 1];
      System.arraycopy(namespace, 0, found[i], 0, namespace.length);
      found[i][namespace.length] = (String) names.get(i);
    }
    return found;
  }

  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    if (!((JsonNode) Python.ask("load_namespace", place(namespace)).get("exists")).asBoolean()) {
      throw new NoSuchNamespaceException(namespace);
    }
    return new HashMap<String, String>();
  }

  public void createNamespace(String[] namespace, Map<String, String> metadata) throws NamespaceAlreadyExistsException {
    ObjectNode arguments = place(namespace);
    arguments.set("properties", Python.object(metadata));
    if (((JsonNode) Python.ask("create_namespace", arguments).get("exists")).asBoolean()) {
      throw new NamespaceAlreadyExistsException(namespace);
    }
  }

  public void alterNamespace(String[] namespace, NamespaceChange[] changes) {
    throw new IllegalArgumentException("a namespace is a directory: it has no properties");
  }

  public boolean dropNamespace(String[] namespace, boolean cascade) throws NonEmptyNamespaceException {
    JsonNode found = Python.ask("drop_namespace", place(namespace).put("cascade", cascade));
    if (found.has("not_empty")) {
      throw new NonEmptyNamespaceException(namespace);
    }
    return ((JsonNode) found.get("dropped")).asBoolean();
  }

  // ------------------------------------------------------------------------------------------------------ procedures

  public UnboundProcedure loadProcedure(Identifier ident) {
    return Procedures.of(this, ident.name());
  }

  public Identifier[] listProcedures(String[] namespace) {
    return Procedures.all(namespace);
  }
}
